"""A model that ends its process when it reads a certain word, and runs that are begun again.

    python -m tests.runs.crashing OUT

It is run as a program: every attempt is a fork, which the word ends by SIGKILL, as the system does
when memory is short. Printed is how many attempts ended so.
"""

import os
import signal
import sys
from functools import partial

import wherefrom
from tests.corpus import planted
from wherefrom.core.memory import set_objects_aside
from wherefrom.corpus.explain import CorpusJob, CorpusSettings
from wherefrom.corpus.studies import corpus_overview
from wherefrom.methods import method
from wherefrom.runs.engine import ModelSource

WORD = planted.WOMEN[0]
TEXTS = [f"the {word} film with {name}" for word in ("good", "bad") for name in planted.MEN[:18]]
POISONED = (5, 20)
for _number in POISONED:
    TEXTS[_number] = f"the film with {WORD}"


def explainer():
    """The tiny model; the word ends whatever process explains it."""
    made = planted.explainer(0, 0.0)
    number = made.tokenizer.convert_tokens_to_ids(WORD)
    made.runner.model.register_forward_pre_hook(partial(_end, number), with_kwargs=True)
    return made


def _end(number, module, args, kwargs):
    if (kwargs["input_ids"] == number).any():
        os.kill(os.getpid(), signal.SIGKILL)


def attempts(begin):
    """Begins until one attempt comes to its end; how many were killed before."""
    for number in range(30):
        child = os.fork()
        if child == 0:
            begin(number > 0)
            os._exit(0)
        status = os.waitpid(child, 0)[1]
        if status == 0:
            return number
        assert os.WIFSIGNALED(status), status
        assert os.WTERMSIG(status) == signal.SIGKILL
    raise AssertionError("it never ended")


def _run(out, resume):
    wherefrom.run(explainer(), TEXTS, out, part_rows=18, resume=resume)


def _corpus(out, resume):
    job = CorpusJob(ModelSource(explainer()), TEXTS, out, CorpusSettings(method("lrp")))
    with corpus_overview(job, 2, resume=resume) as view:
        assert view.corpus.skipped == {"ended its process": len(POISONED)}
        assert view.corpus.explained == len(TEXTS) - len(POISONED)


if __name__ == "__main__":
    set_objects_aside()
    for begin in (_run, _corpus):
        name = begin.__name__[1:]
        print(name, attempts(partial(begin, f"{sys.argv[1]}/{name}")), flush=True)

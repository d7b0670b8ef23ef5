"""An interrupt at any instruction leaves the model and torch as they were."""

import contextlib
import copy
import gc
import random
import signal
import sys
import time
import traceback
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.modules import module as torch_modules
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack

import wherefrom
from tests.helpers import GLOBAL_HOOKS
from wherefrom import Explainer
from wherefrom.audits.propositions import propositions
from wherefrom.core import scope, torch_internals
from wherefrom.core.runner import ModelRunner
from wherefrom.core.scope import Scope, restores_state
from wherefrom.core.target import Case
from wherefrom.evaluation.forward_cache import ForwardCache
from wherefrom.methods import method as find_method
from wherefrom.methods.embedded_inputs import EmbeddedInputs
from wherefrom.methods.propagation import PLAIN
from wherefrom.studies.layer_profile import relevance_sums
from wherefrom.tracing.observers.checkpointing import BlockRun, SavedTensors

HOME = Path(wherefrom.__file__).parent
IDS = [[1, 5, 9, 2], [4, 2]]


class Interrupt(KeyboardInterrupt):
    """Raised by the tests in place of the signal's."""


class Encoder(nn.Module):
    """A Transformer of one block, with what behaves differently in training."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.embed = nn.Embedding(12, 4)
        self.first = nn.LayerNorm(4)
        self.qkv = nn.Linear(4, 12)
        self.drop = nn.Dropout(0.5)
        self.bend = nn.GELU()
        self.frozen = nn.Linear(4, 4).requires_grad_(False)
        self.norm = nn.BatchNorm1d(4)
        self.head = nn.Linear(4, 3)
        self.train()
        self.bend.eval()  # flags differ from module to module

    def forward(self, input_ids, attention_mask):
        x = self.embed(input_ids)
        seen = attention_mask[:, None, None, :].bool()
        q, k, v = (part.unsqueeze(1) for part in self.qkv(self.first(x)).chunk(3, -1))
        x = x + self.drop(F.scaled_dot_product_attention(q, k, v, attn_mask=seen).squeeze(1))
        x = x + self.bend(self.frozen(x))
        weights = attention_mask.unsqueeze(-1) / attention_mask.sum(1)[:, None, None]
        return self.head(self.norm((x * weights).sum(1)))


class Small(nn.Module):
    """As little as an explanation needs."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.embed, self.drop, self.head = nn.Embedding(12, 4), nn.Dropout(0.5), nn.Linear(4, 3)
        self.head.bias.requires_grad_(False)
        self.embed.eval()  # flags differ from module to module

    def forward(self, input_ids, attention_mask):
        return self.head(self.drop(self.embed(input_ids)).sum(1))


def function_state():
    """Whether subclasses and modes see calls; torch before 2.6 tells neither by itself."""
    with TorchFunctionMode():
        modes = torch._C._is_torch_function_mode_enabled()
    return torch._C._is_torch_function_enabled(), modes


def state(model):
    """All that an explanation may change, of the model and of torch in this thread."""
    return {
        "weights": {name: tensor.tolist() for name, tensor in model.state_dict().items()},
        "versions": {name: tensor._version for name, tensor in model.state_dict().items()},
        "trainable": {name: p.requires_grad for name, p in model.named_parameters()},
        "gradients": {name: p.grad is None for name, p in model.named_parameters()},
        "marks": {name: sorted(vars(p)) for name, p in model.named_parameters()},
        "training": {name: part.training for name, part in model.named_modules()},
        "attributes": {name: sorted(vars(part)) for name, part in model.named_modules()},
        "hooks": {
            name: {key: len(value) for key, value in vars(part).items() if "_hooks" in key}
            for name, part in model.named_modules()
        },
        "everywhere": {name: copy.copy(getattr(torch_modules, name)) for name in GLOBAL_HOOKS},
        "modes": _get_current_function_mode_stack(),
        "functions": function_state(),
        "saved": torch_internals.saved_tensors_pack(),
        "grad": torch.is_grad_enabled(),
        "inference": torch.is_inference_mode_enabled(),
        "apply": vars(torch.autograd.Function)["apply"],
        "scopes": len(scope._THREAD.scopes),
        "runs": len(scope._RUNS),
        "lock": scope._LOCK._is_owned(),
    }


def train_a_step(model):
    """A plain step of training, on a copy."""
    model = copy.deepcopy(model)
    before = model.head.weight.detach().clone()
    optimiser = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    ids = torch.tensor([IDS[0], IDS[0][::-1]])
    F.cross_entropy(model(ids, torch.ones_like(ids)), torch.tensor([0, 1])).backward()
    optimiser.step()
    assert not torch.equal(model.head.weight, before)


def explained(method, **settings):
    return lambda model: Explainer(model)(IDS, method, target=1, **settings)


def scored(method):
    """One method on a batch that is ready: the shortest way in and out."""

    def action(model):
        inputs, target = PREPARED
        find_method(method)(Case(ModelRunner(model), inputs, target))

    return action


def run_forms(model):
    cache = ForwardCache(Explainer(model)._reader([IDS[0]]))
    cache.request([(np.array(row), None) for row in IDS])
    cache.run()


PREPARED = Explainer(Encoder())._prepared(IDS[0])
ACTIONS = {
    "lrp": explained("lrp"),
    "integrated_gradients": explained("integrated_gradients", steps=2),
    "transformer_attribution": explained("transformer_attribution"),
    "block": lambda model: EmbeddedInputs.capture(
        Case(ModelRunner(model), PREPARED[0]), "first_block"
    ),
    "forms": run_forms,
    "layers": lambda model: relevance_sums(ModelRunner(model), *PREPARED, PLAIN),
    "propositions": lambda model: propositions(Case(ModelRunner(model), *PREPARED)),
}


class Injector:
    """Counts the instructions of some files, and raises at one of them."""

    def __init__(self, files, by_instruction, at=None):
        self.files, self.by_instruction, self.at = files, by_instruction, at
        self.count = 0
        self.places = {}  # (code, instruction or line): the first and last time it was reached

    def __call__(self, frame, event, arg):
        if frame.f_code.co_filename not in self.files:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = self.by_instruction, not self.by_instruction
        return self.step

    def step(self, frame, event, arg):
        if event == "return" or event == "exception":
            return self.step
        self.count += 1
        if self.at is None:
            place = (frame.f_code, frame.f_lasti if self.by_instruction else frame.f_lineno)
            first, _ = self.places.get(place, (self.count, 0))
            self.places[place] = (first, self.count)
        elif self.count == self.at:
            sys.settrace(None)
            raise Interrupt
        return self.step

    def run(self, action, model):
        sys.settrace(self)
        try:
            action(model)
        finally:
            sys.settrace(None)


SCOPE = {scope.__file__, contextlib.__file__}
ENTERING = SCOPE | {
    str(HOME / "methods" / "intercept.py"),
    torch.overrides.__file__,
    torch.autograd.graph.__file__,
    torch.autograd.grad_mode.__file__,
}
EVERYTHING = ENTERING | {str(path) for path in HOME.rglob("*.py")}


def left_over(action, files, by_instruction, context=contextlib.nullcontext, kind=Encoder):
    """What an interrupt leaves at each place, the first and the last time it is reached."""
    model = kind()
    problems = []
    with context():
        before = state(model)
        action(model)  # fills caches
        counted = Injector(files, by_instruction)
        counted.run(action, model)
        moments = sorted({moment for pair in counted.places.values() for moment in pair})
        for moment in moments:
            try:
                Injector(files, by_instruction, moment).run(action, model)
            except Interrupt as error:
                after = state(model)  # while the traceback still holds its frames
                place = traceback.extract_tb(error.__traceback__)[-2]
                problems += [(place, key) for key in before if before[key] != after[key]]
            after = state(model)  # and when it is gone
            problems += [(moment, key) for key in before if before[key] != after[key]]
            assert problems == []
    train_a_step(model)
    return len(moments)


@pytest.mark.parametrize("context", [contextlib.nullcontext, torch.inference_mode])
def test_an_interrupt_at_any_instruction_of_a_scope_leaves_nothing(context):
    assert left_over(scored("lrp"), SCOPE, True, context, Small) > 400


def test_an_interrupt_at_any_line_of_a_pass_leaves_nothing():
    assert left_over(scored("lrp"), ENTERING, False, kind=Small) > 100


class Stacked(nn.Module):
    """Two blocks and a head."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(4)
        self.embed = nn.Embedding(12, 4)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.GELU()) for _ in range(2)
        )
        self.head = nn.Linear(4, 3)

    def forward(self, input_ids, attention_mask):
        x = self.embed(input_ids)
        for block in self.blocks:
            x = x + block(x)
        return self.head(x.mean(1))


def test_an_interrupt_at_any_line_of_a_second_run_leaves_nothing(monkeypatch):
    plain, again = SavedTensors.__init__, []

    def init(self, *args, **settings):
        plain(self, *args, **settings)
        self.recomputes = True

    run_again = BlockRun.run_again
    monkeypatch.setattr(SavedTensors, "__init__", init)
    monkeypatch.setattr(
        BlockRun, "run_again", lambda block: (again.append(block.path), run_again(block))
    )
    files = SCOPE | {str(HOME / "rules" / "recompute.py"), str(HOME / "rules" / "mode.py")}
    assert left_over(scored("lrp"), files, False, kind=Stacked) > 200
    assert len(again) > 200


@pytest.mark.slow
@pytest.mark.parametrize("name", ACTIONS)
def test_an_interrupt_at_any_instruction_leaves_nothing(name):
    assert left_over(ACTIONS[name], ENTERING, by_instruction=True) > 400


@pytest.mark.slow
@pytest.mark.parametrize("name", ACTIONS)
def test_an_interrupt_at_any_line_leaves_nothing(name):
    assert left_over(ACTIONS[name], EVERYTHING, by_instruction=False) > 100


def test_two_interrupts_in_a_row_leave_nothing():
    model = Encoder()
    before = state(model)

    @restores_state
    def work():
        with Scope(model, gradients=False):
            raise Interrupt

    class Restoring:
        def __init__(self, undo):
            self.undo, self.left = undo, 5

        def __call__(self, own):
            self.left -= 1
            if self.left > 0:
                raise Interrupt
            self.undo(own)

    with pytest.MonkeyPatch.context() as patch:
        undo = Restoring(Scope._undo)
        patch.setattr(Scope, "_undo", lambda own: undo(own))
        with pytest.raises(Interrupt):
            work()
    assert state(model) == before


def test_a_generator_that_is_dropped_later_changes_nothing():
    model = Encoder()

    def passes():
        with Scope(model, gradients=False):
            yield

    suspended = passes()

    @restores_state
    def work():
        next(suspended)
        assert not torch.is_grad_enabled()

    before = state(model)
    work()
    assert state(model) == before
    with torch.no_grad():
        suspended.close()
        assert not torch.is_grad_enabled()


def test_the_locals_of_an_ordinary_error_are_kept_for_a_debugger():
    def fail():
        value = 3
        raise ValueError(value)

    with pytest.raises(ValueError, match="3") as caught:
        restores_state(fail)()
    assert caught.traceback[-1].frame.f_locals == {"value": 3}


def test_the_frames_of_an_error_that_the_caller_handles_are_kept():
    def fail():
        value = 3
        raise ValueError(value)

    @restores_state
    def work():
        raise Interrupt

    frames = []
    try:
        fail()
    except ValueError as error:
        frames.append(error.__traceback__.tb_next.tb_frame)
        with pytest.raises(Interrupt):
            work()
    assert frames[0].f_locals == {"value": 3}


class Stop(Exception):
    """Raised by a mode around an explanation, as that of a late job."""


class Stopping(torch.overrides.TorchFunctionMode):
    """Raises at one call and at every call after it."""

    def __init__(self, at):
        super().__init__()
        self.left = at

    def __torch_function__(self, function, types, args=(), kwargs=None):
        self.left -= 1
        if self.left < 0:
            raise Stop
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("name", "settings"),
    [("lrp", {}), ("integrated_gradients", {"steps": 2}), ("smoothgrad", {"samples": 2})],
)
def test_a_mode_that_stops_every_call_leaves_nothing(name, settings):
    model = Encoder()
    before = state(model)
    errors = []  # kept, as by a future: they hold generators that have not ended
    for at in range(0, 4000, 13):
        mode = Stopping(at)
        try:
            with mode:
                explained(name, **settings)(model)
        except Stop as error:
            errors.append(error)
        assert state(model) == before, f"after {at} calls"
        if mode.left >= 0:
            break
    assert len(errors) > 20
    errors.clear()
    gc.collect()
    assert state(model) == before


def interrupted(action, model, delay):
    """The seconds that the action took, or None if a SIGINT after `delay` seconds stopped it."""
    seconds = None
    start = time.perf_counter()
    try:
        signal.setitimer(signal.ITIMER_REAL, delay)
        action(model)
        seconds = time.perf_counter() - start
        while True:  # the signal ends it
            time.sleep(0.001)
    except KeyboardInterrupt:
        return seconds


def signals(count, seed=0):
    """How many of `count` signals within explanations left something, at random moments."""
    chance = random.Random(seed)
    left = inside = step = 0
    old = signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
    old_int = signal.signal(signal.SIGINT, signal.default_int_handler)
    actions = [explained("lrp"), explained("integrated_gradients", steps=2), scored("dix")]
    callbacks, gc.callbacks[:] = gc.callbacks[:], []  # of hypothesis: an interrupt there is lost
    try:
        model = Encoder()
        durations = [1.0] * len(actions)
        before = state(model)
        while inside < count:
            at = step % len(actions)
            seconds = interrupted(actions[at], model, chance.uniform(1e-5, durations[at]))
            if seconds is None:
                inside += 1
            else:  # the signal came after the action, which is faster than it was believed to be
                durations[at] = seconds
            if state(model) != before:
                left += 1
                model = Encoder()
                before = state(model)
            if step % 50 == 0:
                train_a_step(model)
            step += 1
    finally:
        gc.callbacks[:] = callbacks
        signal.signal(signal.SIGINT, old_int)
        signal.signal(signal.SIGALRM, old)
    return left


# a file that an interrupt leaves open is closed when it is dropped, with a warning
leaves_files = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@leaves_files
def test_signals_at_random_moments_leave_nothing():
    assert signals(20) == 0


@leaves_files
@pytest.mark.slow
def test_a_thousand_signals_at_random_moments_leave_nothing():
    assert signals(1000) == 0

"""Answers of encoder–decoders: the output against its source and what was written before."""

import json
import re
import warnings
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch

from benchmarks.tiny import model as tiny
from tests.helpers import assert_unchanged, exactly
from wherefrom import Explainer, Prompt
from wherefrom.answers.tokens import read_prompt
from wherefrom.core.target import Case, Target
from wherefrom.errors import InputError, ModelError
from wherefrom.inputs.text import from_ids
from wherefrom.methods import method
from wherefrom.show.answer import alignment, page, terminal
from wherefrom.testing import snapshot

FAMILIES = ("t5", "bart", "marian", "mbart", "pegasus")
SOURCE = [17, 45, 8, 99, 23, 2]
ANSWER = [33, 71, 5, 60]


@cache
def explainer(family):
    return Explainer(tiny(family, "translate"))


def logits_of(model, opening, source=SOURCE, answer=ANSWER):
    """The logits at each token of the answer, by the model itself."""
    with torch.no_grad():
        out = model(
            input_ids=torch.tensor([source]),
            decoder_input_ids=torch.tensor([[*opening, *answer[:-1]]]),
        )
    return out.logits[0, len(opening) - 1 :]


@pytest.mark.parametrize("of", ["contrast", "logit", "logprob"])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_ledger_of_a_span_closes_on_what_the_model_says(family, of):
    answer = explainer(family).answer(SOURCE, ANSWER, of=of)
    logits = logits_of(explainer(family).runner.model, [1])
    chosen = logits.gather(1, torch.tensor(ANSWER).unsqueeze(1))[:, 0]
    others = logits.scatter(1, torch.tensor(ANSWER).unsqueeze(1), -torch.inf).amax(1)
    logs = chosen - logits.logsumexp(1)
    expected = {"contrast": chosen - others, "logit": chosen, "logprob": logs}[of]
    bound = 1e-5 if family == "t5" else 1e-10  # its norms are float32 within
    assert answer.start == len(SOURCE) + 1
    for span in (0, 1, slice(1, 4), None):
        explanation = answer.of(span)
        part = answer.span(span)
        exactly(explanation.output, float(expected[part.first : part.last].sum()), 1e-6)
        assert len(explanation.units) == len(SOURCE) + 1 + part.last - 1
        size = sum(abs(line.value) for line in explanation.ledger.lines)
        assert abs(explanation.ledger.residual) < bound * max(size, abs(explanation.output))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_row_is_what_the_explainer_says_of_the_next_token(family):
    """A second way to the same number: the next token after a longer decoder prefix."""
    own = explainer(family)
    answer = own.answer(SOURCE, ANSWER)
    matrix = answer.matrix
    assert matrix.shape == (len(ANSWER), len(SOURCE) + 1 + len(ANSWER))
    reader = own._reader("")
    for token in range(len(ANSWER)):
        prefix = from_ids(None, [1, *ANSWER[:token]])
        units = tuple(replace(u, special=i == 0) for i, u in enumerate(prefix.units))
        longer = replace(reader, decoder_prefix=replace(prefix, units=units))
        inputs = longer.batch(longer.read_all([SOURCE]))
        target = Target(
            torch.tensor([ANSWER[token]]),
            torch.tensor([answer.tokens[token].other_id]),
            torch.tensor([token]),
        )
        expected = method("lrp")(Case(longer.runner, inputs, target)).values[0]
        count = len(SOURCE) + 1 + token
        exactly(matrix[token, :count], expected, 1e-6)
        assert not matrix[token, count:].any()  # nothing comes from tokens that follow
        assert matrix[token, : len(SOURCE)].any()


@pytest.mark.parametrize("family", ["t5", "bart"])
def test_a_span_is_the_sum_of_its_rows_and_handing_on_keeps_every_sum(family):
    bound = 1e-5 if family == "t5" else 1e-9
    one, other = (explainer(family).answer(SOURCE, ANSWER, of="logit") for _ in range(2))
    row = one.row(slice(1, 4))
    exactly(row.values, sum(r.values for r in other.rows()[1:4]), bound)
    exactly(row.output, sum(r.output for r in other.rows()[1:4]), bound)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of tokens that keep their relevance
        through = other.of(multi_hop=True)
    direct = other.of()
    assert through.ledger.of("answer") != pytest.approx(direct.ledger.of("answer"))
    assert through.ledger.relative < bound
    exactly(through.output, direct.output, bound)


@pytest.mark.parametrize("family", ["t5", "bart", "marian"])
def test_a_generated_translation_is_the_most_likely_one_and_nothing_changes(family):
    own = explainer(family)
    model = own.runner.model
    before = snapshot(model)
    answer = own.generate(SOURCE, 4)
    ids = [token.id for token in answer.tokens]
    rows = logits_of(model, list(answer.attribution.prompt.opening), answer=ids)
    free = rows[: len(ids) - 1]  # the last one may be forced to be the end
    assert free.argmax(-1).tolist() == ids[: len(free)]
    assert answer.attribution.prompt.opening == (1,)
    answer.matrix  # noqa: B018
    assert_unchanged(before, snapshot(model))


def test_a_forced_first_token_opens_the_decoder_and_is_not_explained():
    own = Explainer(tiny("bart", "translate"))
    own.runner.model.generation_config.forced_bos_token_id = 7
    given = own.answer(SOURCE, ANSWER, of="logit")
    assert given.attribution.prompt.opening == (1, 7)
    exactly(
        [token.output for token in given.tokens],
        logits_of(own.runner.model, [1, 7]).gather(1, torch.tensor(ANSWER).unsqueeze(1))[:, 0],
        1e-6,
    )
    generated = own.generate(SOURCE, 4, generation={"forced_bos_token_id": 9})
    assert generated.attribution.prompt.opening == (1, 9)
    assert generated.tokens[0].id != 9
    assert [generated.group(unit) for unit in range(5, 9)] == [
        "prompt", "first token", "template", "answer",
    ]  # fmt: skip


TEXT = "the movie is lovely.\n\na bad film"


def test_source_and_output_are_texts_of_their_own(translator):
    answer = translator.answer(TEXT, "a good movie")
    assert [unit.text for unit in answer.units if unit.special] == ["[CLS]", "[SEP]", "[CLS]"]
    assert answer.group(answer.start - 1) == "first token"
    assert answer.group(0) == "template"  # an encoder reads in both directions
    assert answer.text.split() == ["a", "good", "movie"]
    explanation = answer.of()
    assert explanation.text.startswith(TEXT + "\n")
    words = {source.text for source in answer.sources("word")}
    assert {"the", "film", "lovely"} <= words  # the first and the last word of the source too
    assert sum(s.relevance for s in answer.sources("word")) == pytest.approx(
        explanation.ledger.of("prompt")
    )
    assert {s.name for s in answer.sources("passage")} == {"paragraph 1", "paragraph 2"}
    assert answer.of(0).text == TEXT


def test_a_passage_of_the_source_can_be_left_out(translator):
    prompt = Prompt("a film", ["the movie is lovely.", "a bad film"])
    answer = translator.answer(prompt, "a good movie", of="logprob")
    shorter = translator.answer(Prompt("a film", ["the movie is lovely."]), "a good movie",
                                of="logprob")  # fmt: skip
    (citation,) = answer.citations(check=True)
    drop = next(s.drop for s in citation.supports if s.passage == "passage 2")
    assert drop == pytest.approx(answer.of().output - shorter.of().output, abs=1e-6)


def test_every_view_shows_a_translation(translator, tmp_path):
    answer = translator.answer(TEXT, "a good movie", against="a bad movie")
    assert answer.against == 1
    text = terminal(answer, color=False, width=100)
    assert "good" in text
    assert "residual" in text
    data = json.loads(re.search(r'id="data">(.*?)</script>', page(answer), re.DOTALL)[1])
    assert data["prompt"] == TEXT
    assert data["start"] == len(data["units"]) == answer.start
    for row in data["rows"]:
        assert sum(row["lines"].values()) == pytest.approx(row["output"], abs=1e-6)


def test_the_picture_has_a_row_for_each_token_and_a_column_for_each_word(translator, tmp_path):
    answer = translator.answer(TEXT, "a good movie")
    columns = alignment(answer)
    words = ["the", "movie", "is", "lovely", ".", "a", "bad", "film"]
    assert [column.text for column in columns] == [*words, "a", "good"]
    assert [column.earlier for column in columns] == [False] * len(words) + [True] * 2
    table = np.stack([column.relevance for column in columns], 1)  # (answer tokens, columns)
    of_source = {source.text: source.relevance for source in answer.sources("word")}
    exactly(table[:, 0].sum(), of_source["the"])
    exactly(table[:, -2:], answer.matrix[:, answer.start : -1])
    for token in range(len(answer)):  # the share of a column is that of the source
        shares = {source.text: source.share for source in answer.sources("word", token)}
        exactly([column.share[token] for column in columns[:8]], [shares[word] for word in words])
    path = tmp_path / "alignment.png"
    assert answer.plot(path=path) == path
    assert path.read_bytes().startswith(b"\x89PNG")
    few = alignment(answer, limit=3)
    largest = np.sort(np.abs(table[:, : len(words)]).sum(0))[-3:]
    exactly(sorted(np.abs(c.relevance).sum() for c in few if not c.earlier), largest)
    assert [column.text for column in alignment(answer, "passage")][:2] == [
        "paragraph 1", "paragraph 2",
    ]  # fmt: skip
    with pytest.raises(InputError, match='no level "page"'):
        answer.plot(path=path, level="page")


def test_what_cannot_be_translated_is_said_in_a_line(translator, t5):
    with pytest.raises(InputError, match="the answer is empty"):
        translator.answer(TEXT, " ")
    with pytest.raises(InputError, match=r"64 in encoder and decoder each.* Shorten the answer"):
        translator.answer(TEXT, [5] * 70)
    with pytest.raises(InputError, match="Shorten the prompt"):
        translator.answer([5] * 70, [5])

    def own_prefix(model, inputs):
        return model(inputs["input_ids"], decoder_input_ids=torch.tensor([[1, 5]])).logits

    deaf = Explainer(t5, forward=own_prefix)
    with pytest.raises(ModelError, match="does not pass decoder_input_ids to"):
        deaf.answer(SOURCE, ANSWER)
    assert np.isfinite(translator.answer(TEXT, "a").matrix).all()


class Slow:
    """A tokenizer as Marian's: pieces of SentencePiece, and no word of where they lie."""

    all_special_ids = (1,)
    unk_token_id = mask_token_id = None
    pieces = ("", "</s>", "▁the", "▁mov", "ie", "▁", "▁good", "ﬁne")

    def __call__(self, text, **_):
        ids = [2, 3, 4, 5, 1] if text.startswith("the") else [7, 1]
        return {"input_ids": ids, "special_tokens_mask": [int(i == 1) for i in ids]}

    def convert_ids_to_tokens(self, ids):
        return [self.pieces[i] for i in ids]


def test_pieces_of_a_slow_tokenizer_are_found_in_the_text():
    tokens = read_prompt(Slow(), "the movie ", closed=True)
    assert [(u.text, u.start, u.end) for u in tokens.units] == [
        ("the", 0, 3), ("mov", 4, 7), ("ie", 7, 9), (" ", 9, 10), ("</s>", None, None),
    ]  # fmt: skip
    with pytest.raises(InputError, match="Slow returns no spans of its tokens"):
        read_prompt(Slow(), "fine", closed=True)  # what was normalised

"""An answer adds up in every part: spans, rows, sources, and what is handed on."""

import warnings
from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from benchmarks.tiny import model as tiny
from tests.helpers import assert_unchanged, exactly, family_model
from tests.oracles.answers import hop_by_hop
from wherefrom import Explainer, Prompt
from wherefrom.answers.attribution import Measured
from wherefrom.answers.multi_hop import LARGEST_GAIN, MultiHop, RelevanceRow
from wherefrom.answers.sources import PromptSpan, span_of_characters
from wherefrom.answers.tokens import AnswerTokens
from wherefrom.core.target import Case
from wherefrom.errors import InputError, MethodError, ModelError, TargetError
from wherefrom.testing import snapshot

FAMILIES = (
    "gpt2", "llama", "mistral", "qwen2", "gemma", "phi", "opt", "bloom", "gpt_neox", "falcon",
    "mixtral", "gpt_oss",
)  # fmt: skip
NARROW = ("gpt_oss", "mixtral", "gemma", "llama", "mistral", "qwen2")  # float32 within
PROMPT = [1, 17, 45, 8, 99, 23]
ANSWER = [33, 71, 5, 60]


@cache
def explainer(family):
    return Explainer(family_model(family, "write"))


@pytest.mark.parametrize("of", ["contrast", "logit", "logprob"])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_ledger_of_a_span_closes_on_what_the_model_says(family, of):
    model = explainer(family).runner.model
    answer = explainer(family).answer(PROMPT, ANSWER, of=of)
    with torch.no_grad():
        logits = model(torch.tensor([PROMPT + ANSWER])).logits[0, len(PROMPT) - 1 : -1]
    chosen = logits.gather(1, torch.tensor(ANSWER).unsqueeze(1))[:, 0]
    others = logits.scatter(1, torch.tensor(ANSWER).unsqueeze(1), -torch.inf).amax(1)
    logs = chosen - logits.logsumexp(1)
    expected = {"contrast": chosen - others, "logit": chosen, "logprob": logs}[of]
    bound = 1e-5 if family in NARROW else 1e-10
    for span in (1, slice(1, 4), None):
        explanation = answer.of(span)
        part = answer.span(span)
        total = float(expected[part.first : part.last].sum())
        assert explanation.output == pytest.approx(total, abs=1e-6)
        size = sum(abs(line.value) for line in explanation.ledger.lines)
        assert abs(explanation.ledger.residual) < bound * max(size, abs(total))
        assert explanation.probability == pytest.approx(
            float(logs[part.first : part.last].sum().exp()), rel=1e-5
        )


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("lrp", {}),
        ("lrp", {"gate": "frozen", "root": None}),
        ("attn_lrp", {}),
        ("gradient_x_input", {}),
        ("gradient_x_input", {"root": "mean"}),
        ("integrated_gradients", {"steps": 3}),
    ],
)
@pytest.mark.parametrize("family", ["gpt2", "llama", "bloom"])
def test_rows_of_the_matrix_are_explanations_of_single_tokens(family, method, settings):
    whole = explainer(family).answer(PROMPT, ANSWER, method=method, **settings)
    matrix = whole.matrix
    assert matrix.shape == (len(ANSWER), len(PROMPT) + len(ANSWER))
    for token in range(len(ANSWER)):
        # another answer object: nothing of the matrix is there yet
        single = explainer(family).answer(PROMPT, ANSWER, method=method, **settings).of(token)
        count = len(PROMPT) + token
        np.testing.assert_allclose(matrix[token, :count], single.scores, rtol=2e-6, atol=2e-6)
        assert not matrix[token, count:].any()  # nothing comes from tokens that follow
        row = whole.rows()[token]
        assert row.output == pytest.approx(single.output, rel=1e-9)
        if single.ledger is not None and row.lines is not None:
            lines = {(line.label, line.kind): line.value for line in single.ledger.lines}
            for key, value in row.lines.items():
                assert lines[key] == pytest.approx(value, rel=1e-6, abs=1e-9)


def test_a_row_is_what_the_explainer_says_of_the_next_token():
    """A second way to the same number: the explanation of one next token after a longer text."""
    own = explainer("llama")
    answer = own.answer(PROMPT, ANSWER)
    for token in range(len(ANSWER)):
        other = answer.tokens[token].other_id
        expected = own(PROMPT + ANSWER[:token], target=ANSWER[token], against=other)
        exactly(answer.of(token).scores, expected.scores, 1e-6)


def test_a_span_is_the_sum_of_its_rows():
    one, other = (explainer("gpt2").answer(PROMPT, ANSWER) for _ in range(2))
    spans = {span: one.row(slice(*span)) for span in ((0, 4), (1, 3))}
    rows = other.rows()
    for (first, last), row in spans.items():
        exactly(row.values, sum(r.values for r in rows[first:last]))
        exactly(row.output, sum(r.output for r in rows[first:last]))
        for key, value in row.lines.items():
            exactly(value, sum(r.lines.get(key, 0.0) for r in rows[first:last]))


def test_units_of_an_answer_are_where_their_texts_are():
    tokens = AnswerTokens((5, 6, 7), (" it", "", " is."))
    text = "who?" + tokens.text
    units = tokens.units(4)
    assert [text[unit.start : unit.end] for unit in units] == [" it", "", " is."]
    assert [(unit.start, unit.end) for unit in units] == [(4, 7), (7, 7), (7, 11)]


def test_a_padded_batch_of_spans_is_its_samples_one_by_one():
    from wherefrom.core.target import SpanTarget
    from wherefrom.methods import method

    own = explainer("llama")
    reader = own._reader("")
    texts = [[*PROMPT, *ANSWER[:-1]], [1, 7, 9, 11, 44]]
    items = reader.read_all(texts)
    targets = [
        SpanTarget(
            torch.tensor([[33, 71]]), torch.tensor([[2, 3]]), torch.tensor([[5, 6]]), log=False
        ),
        SpanTarget(
            torch.tensor([[12, 13]]), torch.tensor([[4, 5]]), torch.tensor([[3, 4]]), log=False
        ),
    ]
    both = SpanTarget(
        *(torch.cat([getattr(t, name) for t in targets]) for name in ("index", "against")),
        torch.cat([t.position for t in targets]),
    )
    lrp = method("lrp")
    together = lrp(Case(reader.runner, reader.batch(items), both))
    for i, (item, target) in enumerate(zip(items, targets, strict=True)):
        alone = lrp(Case(reader.runner, reader.batch([item]), target))
        exactly(together.values[i, : len(texts[i])], alone.values[0], 1e-6)
        assert not together.values[i, len(texts[i]) :].any()
        exactly(
            sum(line[i] for line in together.lines.values()), sum(alone.lines.values())[0], 1e-6
        )


# Through the reasoning.


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_all_hops_are_the_hops_one_by_one_and_every_sum_is_exact(family, recwarn):
    bound = 1e-5 if family in NARROW else 1e-10
    answer = explainer(family).answer(PROMPT, ANSWER, of="logit")
    rows, start = answer.rows(), answer.start
    expected = hop_by_hop(
        [row.values for row in rows],
        [{**row.lines, "residual": row.residual} for row in rows],
        [row.output for row in rows],
        start,
        keeps=set(MultiHop(rows, start).keeps),
    )
    steps = answer.hops()
    assert len(steps) > 2
    for step, (values, lines) in zip(steps, expected, strict=False):
        exactly(step.scores, values[: len(step.scores)].astype(np.float32), 1e-6)
        assert step.ledger.relative < bound
        exactly(values.sum() + sum(lines.values()), step.output)
    final, last = answer.of(multi_hop=True), expected[-1][0]
    exactly(final.scores, last[: len(final.scores)].astype(np.float32), 1e-6)
    exactly(answer.of(hops=len(ANSWER)).scores, final.scores, 1e-6)
    assert final.ledger.relative < bound
    exactly(answer.of(hops=1).scores, steps[1].scores)


def test_what_a_method_leaves_open_stays_what_it_was_at_every_hop():
    """Gradient × input leaves something open: handing on makes it neither more nor less."""
    answer = explainer("llama").answer(PROMPT, ANSWER, of="logit", method="gradient_x_input")
    residual = answer.of().ledger.residual
    assert abs(residual) > 1e-3 * abs(answer.of().output)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of tokens that keep their relevance
        after = [answer.of(hops=1), answer.of(hops=2), answer.of(multi_hop=True)]
    assert len(MultiHop(answer.rows(), answer.start).keeps) < len(ANSWER) - 1
    for explanation in after:
        exactly(explanation.ledger.residual, residual)


def test_nothing_is_left_on_tokens_that_hand_on_and_all_on_those_that_keep():
    def row(values, output, bias=0.0):
        return RelevanceRow(np.array(values, dtype=float), {("bias", "bias"): bias}, output)

    # two prompt tokens, three answer tokens; the second answer token's terms cancel
    cancels = row([30.0, -31.0, 1.5, 0, 0], 0.5)
    rows = [row([1, 2, 0, 0, 0], 4.0, 1.0), cancels, row([0.5, 0, 2, 3, 0], 5.5)]
    handing = MultiHop(rows, start=2)
    assert handing.gains[1] == pytest.approx(125)
    assert handing.gains[1] > LARGEST_GAIN
    assert handing.keeps == [1]
    after = handing.all(rows[2])
    exactly(after.values, [0.5 + 2 * 1 / 4, 2 * 2 / 4, 0, 3, 0])
    exactly(after.lines["bias", "bias"], 2 / 4)
    exactly(after.values.sum() + sum(after.lines.values()), 5.5)


def test_a_method_without_a_ledger_hands_nothing_on():
    answer = explainer("gpt2").answer(PROMPT, ANSWER, method="gradient")
    assert answer.of(1).ledger is None
    with pytest.raises(InputError, match="has no ledger"):
        answer.of(1, multi_hop=True)
    with pytest.raises(InputError, match="hops must be 0 or more, got -1"):
        answer.of(1, hops=-1)


# Against another answer.


def test_against_another_answer_the_first_difference_is_explained():
    answer = explainer("gpt2").answer(PROMPT, ANSWER, against=[33, 71, 90, 2, 2])
    assert answer.against == 2
    assert answer.span() == answer.span(2)
    explanation = answer.of()
    model = explainer("gpt2").runner.model
    with torch.no_grad():
        row = model(torch.tensor([PROMPT + ANSWER[:2]])).logits[0, -1]
    assert explanation.output == pytest.approx(float(row[5] - row[90]))
    assert (explanation.target.index, explanation.target.against) == (5, 90)
    # other tokens stay compared with their runner-up
    assert answer.tokens[0].other_id == explainer("gpt2").answer(PROMPT, ANSWER).tokens[0].other_id
    for same in (ANSWER, ANSWER[:2], [*ANSWER, 9]):
        with pytest.raises(TargetError, match="no token differs"):
            explainer("gpt2").answer(PROMPT, ANSWER, against=same)


@pytest.mark.parametrize(("values", "kept"), [([5.5, -4.5], []), ([5.6, -4.6], [0])])
def test_a_row_of_the_largest_gain_still_passes_on(values, kept):
    rows = [
        RelevanceRow(np.array([*values, 0.0, 0.0]), {}, 1.0),
        RelevanceRow(np.array([0, 0, 1.0, 0]), {}, 1.0),
    ]
    chain = MultiHop(rows, 2)
    assert chain.gains[0] == pytest.approx(LARGEST_GAIN + 0.2 * len(kept))
    assert chain.keeps == kept
    moved = chain.all(rows[1]).values
    np.testing.assert_allclose(moved, [0, 0, 1, 0] if kept else [*values, 0, 0])


# What it consists of.


TEXT = "the movie is lovely.\n\nParis is the movie.\n\nwho is it?"


def test_sources_of_every_level_share_the_relevance_of_the_prompt(talker):
    answer = talker.answer(TEXT, " it is Paris. love!")
    ledger = answer.of().ledger
    for level in ("token", "word", "sentence", "passage"):
        sources = answer.sources(level)
        assert sum(source.relevance for source in sources) == pytest.approx(ledger.of("prompt"))
        assert sum(abs(source.share) for source in sources) == pytest.approx(1)
        assert sources == sorted(sources, key=lambda source: -source.relevance)
    names = {source.name: source.text for source in answer.sources("passage")}
    assert names == {
        "paragraph 1": "movie is lovely.",  # without the first token, a line of its own
        "paragraph 2": "Paris is the movie.",
        "paragraph 3": "who is it?",
    }
    assert {s.text for s in answer.sources("sentence")} == {*names.values()}
    assert "movie" in {source.text for source in answer.sources("word")}
    assert ledger.of("first token") == pytest.approx(float(answer.of().scores[0]), rel=1e-5)
    with pytest.raises(InputError, match='no level "page"'):
        answer.sources("page")


def test_a_span_has_all_tokens_of_its_characters_and_no_others():
    pieces = ["ab", "c", "", "", "é", " d"]  # the é has three tokens: the last one has its text
    places = np.cumsum([0, *map(len, pieces)])
    text = "".join(pieces)
    for start in range(len(text)):
        for end in range(start + 1, len(text) + 1):
            owners = [i for i in range(6) if any(places[i] <= c < places[i + 1]
                                                 for c in range(start, end))]  # fmt: skip
            first = 2 if owners[0] == 4 else owners[0]
            expected = PromptSpan(text[start:end], first, owners[-1] + 1, start, end)
            assert span_of_characters(pieces, start, end) == expected


def test_a_token_is_not_compared_with_a_variant_of_its_word():
    texts = [" seven", "Seven", "SEVEN ", " eight", "\n", " "]

    class Tokenizer:
        def decode(self, ids):
            return "".join(texts[i] for i in ids)

    logits = torch.tensor([[5.0, 4, 3, 2, 1, 0], [5.0, 4, 3, 2, 1, 0], [0, 1, 2, 3, 4.0, 5]])
    answer = AnswerTokens((0, 3, 4), (" seven", " eight", "\n"))
    assert Measured.of(logits, answer, {}, Tokenizer()).others == (3, 0, 5)
    assert Measured.of(logits, answer, {}).others == (1, 0, 5)
    assert Measured.of(logits, answer, {0: 2}, Tokenizer()).others == (2, 0, 5)
    same = torch.tensor([[5.0, 4, 3]])  # there is no other word
    assert Measured.of(same, AnswerTokens((0,), (" seven",)), {}, Tokenizer()).others == (1,)


def test_spans_by_word_sentence_and_text(talker):
    answer = talker.answer(TEXT, " it is Paris. Love!")
    assert [span.text for span in answer.sentences()] == ["it is Paris.", "Love!"]
    assert [span.text for span in answer.words] == ["it", "is", "Paris", ".", "Love", "!"]
    paris = answer.span("Paris")
    assert "".join(t.text for t in answer.tokens[paris.first : paris.last]).strip() == "Paris"
    assert answer.of("Paris").output == pytest.approx(
        sum(t.output for t in answer.tokens[paris.first : paris.last])
    )
    assert answer.span(-1).text == "!"
    for part, message in (("Rome", "not in the answer"), (99, "no token 99"),
                          (slice(3, 3), "not a span")):  # fmt: skip
        with pytest.raises(TargetError, match=message):
            answer.of(part)


def test_citations_rank_passages_and_check_them_by_leaving_them_out(talker):
    prompt = Prompt("who is it?", ["the movie is lovely.", "Paris is the movie."])
    answer = talker.answer(prompt, " it is Paris. Love!")
    first, second = answer.citations(check=True)
    assert first.sentence.text == "it is Paris."
    assert {support.passage for support in first.supports} == {"passage 1", "passage 2"}
    assert first.supports[0].relevance >= first.supports[1].relevance
    shorter = Prompt("who is it?", ["the movie is lovely."])
    without = talker.answer(shorter, " it is Paris. Love!", of="logprob")
    drop = next(s.drop for s in second.supports if s.passage == "passage 2")
    whole = talker.answer(prompt, " it is Paris. Love!", of="logprob")
    expected = whole.of("Love!").output - without.of("Love!").output
    assert drop == pytest.approx(expected, abs=1e-6)
    with pytest.raises(InputError, match="no passages to cite"):
        talker.answer("who is it?", " Paris").citations()


# Generation.


def test_a_generated_answer_is_the_most_likely_one_and_nothing_changes(talker):
    model = talker.runner.model
    model.generation_config.do_sample, model.generation_config.temperature = True, 0.3
    model.train()
    before, settings = snapshot(model), model.generation_config.to_dict()
    state = torch.get_rng_state()
    answer = talker.generate("the movie is", max_new_tokens=5)
    ids = list(answer.attribution.prompt.ids)
    for token in answer.tokens:
        with torch.no_grad():
            assert int(model(torch.tensor([ids])).logits[0, -1].argmax()) == token.id
        ids.append(token.id)
    answer.matrix  # noqa: B018
    assert_unchanged(before, snapshot(model))
    model.eval()
    assert model.generation_config.to_dict() == settings
    assert torch.equal(torch.get_rng_state(), state)


def test_sampling_is_repeatable_by_its_seed(talker):
    state = torch.get_rng_state()
    one, same, other = (
        talker.generate("the movie is", 12, temperature=1.0, seed=seed) for seed in (1, 1, 2)
    )
    assert one.text == same.text
    assert torch.equal(torch.get_rng_state(), state)
    assert [t.id for t in one.tokens] != [t.id for t in other.tokens]


def test_a_stop_token_ends_the_answer_and_is_no_part_of_it(talker):
    first = talker.generate("the movie is", 6)
    assert first.finished is False
    third = first.tokens[2].id
    seen = [token.id for token in first.tokens].index(third)
    if seen == 0:
        pytest.fail("the third token is the first one again: choose another prompt")
    stopped = talker.generate("the movie is", 6, generation={"eos_token_id": third})
    assert [token.id for token in stopped.tokens] == [t.id for t in first.tokens[:seen]]
    assert stopped.finished is True
    with pytest.raises(InputError, match="first token that the model generates is a stop token"):
        talker.generate("the movie is", 6, generation={"eos_token_id": first.tokens[0].id})


class Prefixed(torch.nn.Module):
    """A model with virtual tokens in front of its input, as prompt tuning makes it."""

    def __init__(self, model):
        super().__init__()
        self.model, self.config = model, model.config

    def get_output_embeddings(self):
        return self.model.get_output_embeddings()

    def forward(self, input_ids, attention_mask=None):
        rows = self.model.get_input_embeddings()(input_ids)
        return self.model(inputs_embeds=torch.cat([torch.ones_like(rows[:, :3]), rows], 1))


def test_places_that_unknown_virtual_tokens_shift_are_refused():
    tuned = Explainer(Prefixed(explainer("gpt2").runner.model))
    with pytest.raises(ModelError, match="gives 12 outputs for 9 tokens"):
        tuned.answer(PROMPT, ANSWER)
    with pytest.raises(ModelError, match="gives 9 outputs for 6 tokens"):
        tuned(PROMPT)


def test_the_places_of_a_prompt_tuned_model_are_those_of_its_input():
    model = Prefixed(explainer("gpt2").runner.model)
    model.active_adapter = "default"
    model.peft_config = {"default": SimpleNamespace(is_prompt_learning=True, num_virtual_tokens=3)}
    tuned = Explainer(model)
    with torch.no_grad():
        rows = model(torch.tensor([PROMPT + ANSWER])).logits[0, 3:]
    exactly(tuned(PROMPT, target=9, position=-1).output, rows[len(PROMPT) - 1, 9], 1e-6)
    exactly(tuned(PROMPT, "occlusion", target=9, position=2).output, rows[2, 9], 1e-6)
    answer = tuned.answer(PROMPT, ANSWER, of="logit")
    chosen = rows[len(PROMPT) - 1 : -1].gather(1, torch.tensor(ANSWER).unsqueeze(1))[:, 0]
    exactly([token.output for token in answer.tokens], chosen, 1e-6)
    exactly(answer.of().output, chosen.sum(), 1e-6)
    assert answer.of().ledger.relative < 1e-10


def test_what_cannot_be_answered_is_said_in_a_line(talker, bytepairs, wordpiece):
    with pytest.raises(InputError, match="the answer is empty"):
        talker.answer("the movie", "  ")
    with pytest.raises(InputError, match="the answer is empty"):
        talker.answer("the movie", [])
    with pytest.raises(InputError, match="the prompt is empty"):
        talker.answer(" \n", "x")
    with pytest.raises(InputError, match="no chat template"):
        talker.answer([{"role": "user", "content": "hi"}], "x")
    with pytest.raises(InputError, match="max_new_tokens must be 1 or more, got 0"):
        talker.generate("the movie", 0)
    with pytest.raises(InputError, match="no option 'tmperature'"):
        talker.generate("the movie", 1, generation={"tmperature": 1})
    with pytest.raises(MethodError, match='no "probability"'):
        talker.answer("the movie", " is", of="probability")
    with pytest.raises(MethodError, match='auto has no setting "stpes"'):
        talker.answer("the movie", " is", stpes=3)
    with pytest.raises(InputError, match="the model takes 512"):
        talker.answer("the movie " * 200, " is")
    with pytest.raises(ModelError, match="is not a language model"):
        Explainer(tiny("bert", "classify"), wordpiece).answer("the film", "good")
    with pytest.warns(UserWarning, match="without a space"):
        talker.answer("the movie", "is")
    with (
        pytest.warns(UserWarning, match="tokenised separately"),
        pytest.warns(UserWarning, match="without a space"),
    ):
        joined = talker.answer("mo", "vie", of="logit")
    assert bytepairs("mo").input_ids == list(joined.attribution.prompt.ids)
    assert bytepairs("movie").input_ids[: joined.start] != list(joined.attribution.prompt.ids)
    assert joined.text == "vie"


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda own: own.answer(PROMPT, ANSWER).of(1.5), TargetError, "got 1.5"),
        (lambda own: own.answer(PROMPT, ANSWER).of(["x"]), TargetError, r"got \['x'\]"),
        (
            lambda own: own.answer(PROMPT, ANSWER).of(" "),
            TargetError,
            "an empty text is not a part",
        ),
        (lambda own: own.answer(PROMPT, ANSWER).of(1, hops="two"), InputError, "hops must be 0"),
        (lambda own: own.answer(PROMPT, None), InputError, "a list of token ids, got NoneType"),
        (lambda own: own.answer(PROMPT, 3), InputError, "a list of token ids, got int"),
        (lambda own: own.generate(PROMPT, "3"), InputError, "max_new_tokens must be 1 or more"),
        (lambda own: own.generate(PROMPT, temperature=0), InputError, "temperature must be more"),
    ],
)
def test_what_is_wrong_with_a_part_or_an_answer_is_said_in_a_line(call, error, message):
    with pytest.raises(error, match=message):
        call(explainer("llama"))

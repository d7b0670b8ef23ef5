"""Root points: what each kind of root is, that the ledger stays exact, and where it is read."""

import dataclasses

import pytest
import torch
from torch import Tensor, nn

from tests.helpers import exactly, normal
from tests.methods.calling import ROWS, asked, family, found, of_ids, of_tensor, runner_of, same
from tests.modules import D, Vision
from wherefrom.core.explanation import Unit
from wherefrom.core.runner import Batch, Layout, ModelRunner
from wherefrom.core.target import Case
from wherefrom.errors import InputError, MethodError
from wherefrom.inputs.image import filled
from wherefrom.methods import method
from wherefrom.methods.root import _MEANS, _mean_row, root_change
from wherefrom.tracing.observers.entry_points import EmbeddedInput, Span

UNK = 1
ROOTED = ["lrp", "secant"]


def with_unk(inputs):
    inputs.blanks["unk"] = UNK
    return inputs


def closed(result, output, tol=1e-10):
    exactly(torch.stack(list(result.lines.values())).sum(0), output, tol)


def output_of(model, inputs, target):
    with torch.no_grad():
        return asked(inputs, target)(ModelRunner(model).run(inputs.model_tensors()))


@pytest.mark.parametrize("root", ["zero", "unk", "mean", 7])
@pytest.mark.parametrize("name", ROOTED)
@pytest.mark.parametrize("at", ["embeddings", "first_block"])
def test_the_ledger_is_exact_with_any_root(bert, root, name, at):
    inputs = with_unk(of_ids(bert, ROWS))
    result = found(bert, inputs, name, 1, root=root, at=at)
    closed(result, output_of(bert, inputs, 1))
    kind = "reference" if name == "secant" else "root"
    assert (kind, kind) in result.lines


@pytest.mark.parametrize("name", ["gpt2", "llama", "gptj"])
@pytest.mark.parametrize("rooted", ROOTED)
def test_the_ledger_of_a_decoder_is_exact_with_a_root(name, rooted):
    model = family(name, "write")
    inputs = of_ids(model, ROWS)
    result = found(model, inputs, rooted, 5, root="mean")
    closed(result, output_of(model, inputs, 5), 1e-6)  # norms and rotations in float32


@pytest.mark.parametrize("name", ROOTED)
def test_an_encoder_and_a_decoder_have_roots_of_their_own(name):
    model = family("bart", "translate")
    inputs = of_ids(model, ROWS[:1], prefix=[1, 4, 9])
    result = found(model, inputs, name, 5, root="mean")
    closed(result, output_of(model, inputs, 5), 1e-9)


@pytest.mark.parametrize("name", ROOTED)
def test_a_batch_gives_what_its_samples_give_alone(bert, name):
    together = found(bert, with_unk(of_ids(bert, ROWS)), name, 1, root="unk")
    for i, row in enumerate(ROWS):
        alone = found(bert, with_unk(of_ids(bert, [row])), name, 1, root="unk")
        same(together.values[i, : len(row)], alone.values[0])
        for key, line in alone.lines.items():
            exactly(together.lines[key][i], line[0], 1e-9)


@pytest.mark.parametrize("name", ["lrp", "attn_lrp", "gradient_x_input", "lrp_ah_ln"])
def test_a_root_moves_the_score_by_gradient_times_root(bert, name):
    inputs = with_unk(of_ids(bert, ROWS))
    word = bert.bert.embeddings.word_embeddings.weight.detach()
    plain = found(bert, inputs, name, 1, at="embeddings", root="zero").values
    rooted = found(bert, inputs, name, 1, at="embeddings", root="unk").values
    # linear in the root: a root half way gives the mean of the two
    half = found(bert, inputs, name, 1, at="embeddings", root=word[UNK] / 2).values
    exactly(half, (plain + rooted) / 2)
    assert float((plain - rooted).abs().max()) > 1e-6


def test_a_unit_that_is_the_root_gets_nothing(bert):
    inputs = with_unk(of_ids(bert, [[5, UNK, 33, 2]]))
    for name in ROOTED:
        values = found(bert, inputs, name, 1, root="unk").values
        assert float(values[0, 1].abs()) < 1e-12
        assert float(values[0, 0].abs()) > 1e-6


def test_at_the_root_itself_secants_leave_only_the_root(bert):
    inputs = with_unk(of_ids(bert, [[UNK] * 5]))
    result = found(bert, inputs, "secant", 1, root="unk")
    assert float(result.values.abs().max()) < 1e-12
    exactly(result.lines["reference", "reference"], output_of(bert, inputs, 1))


def test_special_tokens_and_padding_stay(bert):
    rows = torch.arange(12.0).reshape(2, 3, 2)
    units = ((Unit("[CLS]", special=True), Unit("a"), Unit("b")), (Unit("a"), Unit("b")))
    mask = torch.tensor([[True, True, True], [True, True, False]])
    inputs = Batch({}, ("x",), units, mask, (None, None))
    changed = root_change(inputs, "zero")(EmbeddedInput(rows, Span(0, 0, 0, 3)))
    expected = rows.clone()
    expected[0, 1:], expected[1, :2] = 0, 0
    exactly(changed, expected)


def test_rows_in_front_of_the_units_stay():
    rows = torch.ones(1, 4, 2)
    inputs = Batch(
        {}, ("x",), ((Unit("a"), Unit("b")),), torch.ones(1, 2, dtype=torch.bool), (None,)
    )
    changed = root_change(inputs, "zero")(EmbeddedInput(rows, Span(0, 0, 1, 2)))
    assert changed[0, :, 0].tolist() == [1, 0, 0, 1]


def test_the_mean_is_that_of_the_table_or_of_the_rows(bert):
    table = torch.tensor([[1.0, 2.0], [3.0, 6.0]])
    units = (tuple(Unit(c) for c in "abc"),)
    mask = torch.tensor([[True, True, True]])
    inputs = Batch({}, ("x",), units, mask, (None,))
    rows = torch.tensor([[[0.0, 3.0], [3.0, 0.0], [6.0, 3.0]]])
    of_table = root_change(inputs, "mean")(EmbeddedInput(rows, Span(0, 0, 0, 3), table))
    exactly(of_table[0, 0], [2.0, 4.0])
    of_rows = root_change(inputs, "mean")(EmbeddedInput(rows, Span(0, 0, 0, 3)))
    exactly(of_rows[0, 2], [3.0, 2.0])


@pytest.mark.parametrize("root", ["zero", "mean", "blur"])
def test_images_are_compared_with_an_empty_image(root):
    torch.manual_seed(3)
    image = torch.rand(1, 1, 4, 4, dtype=torch.float64)
    places = torch.tensor([[0, 1], [2, 3]]).repeat_interleave(2, 0).repeat_interleave(2, 1)
    order = torch.empty(16, dtype=torch.long)
    for owner in range(4):
        for k, at in enumerate((places.flatten() == owner).nonzero().flatten()):
            order[at] = owner * 4 + k
    layout = Layout((1, 4, 4), 4, 4, order)
    rows = layout.split(image)
    inputs = Batch(
        {"x": rows}, ("x",), (tuple(Unit(str(i)) for i in range(4)),),
        torch.ones(1, 4, dtype=torch.bool), (None,), layout=layout,
    )  # fmt: skip
    changed = root_change(inputs, root)(EmbeddedInput(rows, Span(0, 0, 0, 4)))
    exactly(layout.whole(changed)[0], filled(image[0], root))


def test_a_root_for_rows_of_numbers(rng):
    model, x = Vision(4), normal(rng, 2, 4, D)
    inputs = of_tensor(x)
    for root in ("zero", "mean", normal(rng, D)):
        for name in ROOTED:
            result = found(model, inputs, name, 1, root=root)
            closed(result, model(x)[:, 1].detach())


def test_the_mean_of_rows_of_numbers_leaves_padding_out(rng):
    x = normal(rng, 2, 4, D)
    inputs = of_tensor(x)
    inputs.mask[0, 2:] = False
    units = tuple(
        row[: int(mask.sum())] for row, mask in zip(inputs.units, inputs.mask, strict=True)
    )
    inputs = dataclasses.replace(inputs, units=units)
    changed = root_change(inputs, "mean")(EmbeddedInput(x, Span(0, 0, 0, 4)))
    exactly(changed[0, :2], x[0, :2].mean(0).expand(2, -1))
    exactly(changed[0, 2:], x[0, 2:])  # padding stays
    exactly(changed[1], x[1].mean(0).expand(4, -1))


def test_what_cannot_be_a_root_is_refused(bert):
    inputs = of_ids(bert, ROWS)
    with pytest.raises(MethodError, match="needs a root"):
        found(bert, inputs, "secant", 1, root=None)
    with pytest.raises(MethodError, match="does not fit"):
        found(bert, inputs, "lrp", 1, root=torch.zeros(5))
    with pytest.raises(InputError, match='no "mask" token'):
        found(bert, inputs, "lrp", 1, root="mask")
    with pytest.raises(MethodError, match="there is no"):
        found(bert, inputs, "lrp", 1, root="nothing")
    rows = of_tensor(torch.zeros(1, 4, D, dtype=torch.float64))
    with pytest.raises(MethodError, match="for texts"):
        method("lrp", root="unk")(Case(runner_of(Vision(4), rows), rows, asked(rows, 1)))


def test_the_mean_of_a_table_is_that_of_its_present_numbers():
    table = nn.Parameter(torch.randn(600, 4, dtype=torch.float64))
    writes = [
        lambda: None,
        lambda: table.detach().mul_(2),
        lambda: table.data.add_(1),
        lambda: table.data.__setitem__(slice(0, 512), 3.0),
    ]
    for write in writes:
        write()
        for _ in range(2):
            exactly(_mean_row(table.detach()), table.detach().mean(0))
    exactly(_mean_row(table.detach()[:300]), table.detach()[:300].mean(0))


def test_a_large_table_is_read_once(monkeypatch):
    table, means, before = torch.randn(600, 4), [], len(_MEANS)
    mean = Tensor.mean
    monkeypatch.setattr(Tensor, "mean", lambda *args: means.append(1) or mean(*args))
    for _ in range(3):
        _mean_row(table)
    assert len(means) == 1
    for _ in range(8):  # tables that are gone are forgotten, wherever the next one lies
        exactly(_mean_row(another := torch.randn(600, 4)), mean(another, 0))
    assert len(_MEANS) <= before + 2

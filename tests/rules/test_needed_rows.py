"""Rows that nothing reads are not computed behind the last attention, and nothing else changes."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.helpers import exactly
from tests.methods.calling import asked, of_ids, of_tensor, subject_of, tiny
from wherefrom.methods import method
from wherefrom.rules import affine, needed_rows
from wherefrom.target import Target

IDS = [[5, 17, 33, 8, 60, 71, 2, 9, 4, 11, 23, 7, 8, 2], [9, 4, 11, 23, 2, 6, 31, 44, 3, 2, 8, 8]]
D = 6


class Reads(nn.Module):
    """Attention and a layer behind it, of which `read` takes what it likes."""

    def __init__(self, read):
        super().__init__()
        self.mix, self.layer, self.head = nn.Linear(D, D), nn.Linear(D, D), nn.Linear(D, 2)
        self.read = read

    def forward(self, x):
        values = self.mix(x).unsqueeze(1)
        seen = F.scaled_dot_product_attention(x.unsqueeze(1), x.unsqueeze(1), values).squeeze(1)
        return self.head(self.read(x + F.gelu(self.layer(seen + x))))


def reading(read):
    torch.manual_seed(0)
    return Reads(read).double().eval()


def explained(model, inputs, target, name="lrp"):
    return method(name)(subject_of(model, inputs), inputs, target)


def in_full(model, inputs, target, name="lrp"):
    """As if the model had never been seen."""
    needed_rows._KNOWN.pop(model, None)
    return explained(model, inputs, target, name)


def same(actual, expected):
    exactly(actual.values, expected.values, 1e-12)
    assert actual.lines.keys() == expected.lines.keys()
    for key, line in expected.lines.items():
        exactly(actual.lines[key], line, 1e-12)


def rows_run(monkeypatch, run):
    """How many rows of each linear layer are computed, the whole ones as None."""
    rows, apply = [], affine._rows_linear

    def counted(x, weight, bias, places=None):
        rows.append(None if places is None else len(places))
        return apply(x, weight, bias, places)

    with monkeypatch.context() as patch:
        patch.setattr(affine, "_rows_linear", counted)
        run()
    return rows


MODELS = {
    "a classifier reads its first place": ("bert", "classify", 0, 3),
    "a decoder the asked ones": ("llama", "write", 1, 4),
}


@pytest.mark.parametrize("name", ["lrp", "attn_lrp", "gradient_x_input"])
@pytest.mark.parametrize("case", list(MODELS.values()), ids=list(MODELS))
def test_only_rows_that_are_read_are_computed_and_nothing_changes(case, name, monkeypatch):
    family, task, batch, layers = case
    model = tiny(family, task)
    inputs = of_ids(model, IDS[batch:])
    target = asked(inputs, 1) if task == "write" else Target(torch.ones(2 - batch).long())
    expected = in_full(model, inputs, target, name)
    for _ in range(2):
        same(explained(model, inputs, target, name), expected)
    counts = rows_run(monkeypatch, lambda: same(explained(model, inputs, target, name), expected))
    assert counts.count(1) == layers
    assert set(counts) == {None, 1}


def test_the_rows_of_a_batch_are_those_that_any_sample_asks_for(monkeypatch):
    model = tiny("llama", "write")
    inputs = of_ids(model, IDS)
    target = asked(inputs, 1)
    expected = in_full(model, inputs, target)
    for _ in range(2):
        explained(model, inputs, target)
    counts = rows_run(monkeypatch, lambda: same(explained(model, inputs, target), expected))
    assert counts.count(2) == 4


ELSEWHERE = {
    "mean": lambda x: x.mean(1),
    "another row": lambda x: x[:, 3],
    "from the end": lambda x: x[:, -1],
    "several": lambda x: x[:, :2].sum(1),
    "first axis": lambda x: x[0:][:, 3],
    "index": lambda x: x[:, torch.tensor([0, 5])].sum(1),
    "mask": lambda x: x[:, torch.arange(x.shape[1]) > 2].sum(1),
    "both": lambda x: x[torch.arange(len(x)), torch.arange(len(x)) + 1],
    "transposed": lambda x: x.mT[:, :, 4],
    "attribute": lambda x: x[:, 0] + x.data[:, 1],
    "as numbers": lambda x: x[:, 0] * x.tolist()[0][2][0],
    "flattened": lambda x: x.flatten(1)[:, :D] + x.flatten(1)[:, -D:],
    "cumulated": lambda x: x.cumsum(1)[:, 0] + x.flip(1)[:, 0],
    "norm of all": lambda x: F.layer_norm(x, x.shape[1:])[:, 0],
    "sum over rows": lambda x: (x - x.sum(1, keepdim=True))[:, 0],
    "written": lambda x: torch.zeros_like(x).add_(x).sum(1),
    "branch": lambda x: x[:, 0] if x.sum() > 1e9 else x[:, 0] * 2,
    "select": lambda x: x.select(1, 2),
}


@pytest.mark.filterwarnings("ignore::wherefrom.errors.NotConserved")  # of .data
@pytest.mark.parametrize("read", list(ELSEWHERE.values()), ids=list(ELSEWHERE))
def test_what_reads_other_rows_gets_them(read, monkeypatch):
    model, inputs = reading(read), of_tensor(torch.randn(2, 9, D).double())
    target = Target(torch.tensor([0, 1]))
    expected = in_full(model, inputs, target)
    for _ in range(3):
        same(explained(model, inputs, target), expected)
    counts = rows_run(monkeypatch, lambda: explained(model, inputs, target))
    assert set(counts) == {None}


FIRST = {
    "row": lambda x: x[:, 0],
    "select": lambda x: x.select(1, 0),
    "norm": lambda x: F.layer_norm(x * 2, (D,))[:, :1].squeeze(1),
    "scaled": lambda x: (x * x.pow(2).mean(-1, keepdim=True).add(1e-3).rsqrt())[:, 0],
    "halves": lambda x: torch.cat([part[:, 0] for part in x.chunk(2, -1)], -1),
}


@pytest.mark.parametrize("read", list(FIRST.values()), ids=list(FIRST))
def test_what_reads_the_first_row_gets_it_alone(read, monkeypatch):
    model, inputs = reading(read), of_tensor(torch.randn(2, 9, D).double())
    target = Target(torch.tensor([0, 1]))
    expected = in_full(model, inputs, target)
    for _ in range(2):
        explained(model, inputs, target)
    counts = rows_run(monkeypatch, lambda: same(explained(model, inputs, target), expected))
    assert counts.count(1) == 1


@pytest.mark.parametrize("read", [ELSEWHERE["mean"], ELSEWHERE["another row"]])
@pytest.mark.parametrize("caught", [False, True])
def test_a_model_that_comes_to_read_others_is_noticed(read, caught):
    model, inputs = reading(FIRST["row"]), of_tensor(torch.randn(2, 9, D).double())
    target = Target(torch.tensor([0, 1]))
    for _ in range(3):
        explained(model, inputs, target)

    def careful(x):
        try:
            return read(x)
        except Exception:
            return x[:, 0]

    model.read = careful if caught else read
    actual = explained(model, inputs, target)
    same(actual, in_full(model, inputs, target))


class Unseen(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.shape = x.shape
        return torch.from_numpy(x.detach().numpy().mean(1))

    @staticmethod
    def backward(ctx, gradient):
        return gradient.unsqueeze(1).expand(ctx.shape) / ctx.shape[1]


@pytest.mark.filterwarnings("ignore::wherefrom.errors.NotConserved")
def test_a_function_that_no_call_is_seen_of_gets_all_rows(monkeypatch):
    model = reading(lambda x: x[:, 0] + Unseen.apply(x))
    inputs = of_tensor(torch.randn(2, 9, D).double())
    target = Target(torch.tensor([0, 1]))
    expected = in_full(model, inputs, target)
    for _ in range(3):
        same(explained(model, inputs, target), expected)

"""Rows that nothing reads are not computed behind the last attention, and nothing else changes."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.helpers import exactly
from tests.methods.calling import asked, of_ids, of_tensor, subject_of, tiny
from wherefrom.core.target import Target
from wherefrom.methods import method
from wherefrom.rules import linear as affine
from wherefrom.rules import needed_rows
from wherefrom.rules.product import Products

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
    """How many rows of each linear layer are computed; None where there are no rows."""
    rows, apply = [], affine._rows_linear

    def counted(x, weight, bias, places=None):
        out = apply(x, weight, bias, places)
        rows.append(out.shape[1] if out.ndim == 3 else None)
        return out

    with monkeypatch.context() as patch:
        patch.setattr(affine, "_rows_linear", counted)
        run()
    return rows


MODELS = {
    "a classifier reads its first place": ("bert", "classify", 0, 3),
    "a decoder the asked ones": ("llama", "write", 1, 5),  # the output projection has one anyway
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
    assert set(counts) <= {None, 1, len(IDS[batch])}


def test_the_rows_of_a_batch_are_those_that_any_sample_asks_for(monkeypatch):
    model = tiny("llama", "write")
    inputs = of_ids(model, IDS)
    target = asked(inputs, 1)
    expected = in_full(model, inputs, target)
    for _ in range(2):
        explained(model, inputs, target)
    counts = rows_run(monkeypatch, lambda: same(explained(model, inputs, target), expected))
    assert counts.count(2) == 5


BY_ROW = torch.linspace(2, 3, 9 * D).view(9, D).double()
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
    # what these add is a position's, of each unit
    "a constant for each row": lambda x: (x + BY_ROW)[:, 0],
    "a product added to one": lambda x: torch.addcmul(BY_ROW, x, torch.full_like(x, 2.0))[:, 0],
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
    assert set(counts) <= {None, 9}


FIRST = {
    "row": lambda x: x[:, 0],
    "select": lambda x: x.select(1, 0),
    "norm": lambda x: F.layer_norm(x * 2, (D,))[:, :1].squeeze(1),
    "scaled": lambda x: (x * x.pow(2).mean(-1, keepdim=True).add(1e-3).rsqrt())[:, 0],
    "halves": lambda x: torch.cat([part[:, 0] for part in x.chunk(2, -1)], -1),
    "in place": lambda x: x.mul_(2).add_(x)[:, 0],
    "a module": lambda x: nn.GELU()(x)[:, 0],
    "a module in place": lambda x: (nn.ELU(inplace=True)(x) + x)[:, 0],
    "a factor for each row": lambda x: (x * BY_ROW[:, :1])[:, 0],
    "joined to a constant": lambda x: torch.cat([x, BY_ROW.expand(2, -1, -1)], -1)[:, 0, 2 : D + 2],
    "joined": lambda x: torch.cat([x * 2, x], -1)[:, 0, :D],
    "an index": lambda x: x[:, torch.tensor([0])].squeeze(1),
    "a cast": lambda x: x.float().double()[:, 0],
    "out of the graph": lambda x: (x * x.detach())[:, 0],
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


def test_rows_that_were_not_computed_are_not_picked():
    rows = needed_rows.NeededRows(nn.Identity(), torch.tensor([2, 6]))
    whole = rows.placeholder(torch.randn(1, 2, D), 9)
    assert needed_rows.rows_at(whole, torch.tensor([[6, 3]])) is None
    exactly(needed_rows.rows_at(whole, torch.tensor([[6]])), needed_rows.rows_of(whole)[:, 1:])


ORDERED = {
    "by an index": lambda x: x[:, torch.tensor([6, 2])].flatten(1)[:, :D],
    "by a slice": lambda x: x[:, 2:7:4, 1:].flatten(1)[:, :D],
    "behind a module": lambda x: nn.GELU()(x)[:, torch.tensor([6, 2])].sum(1),
}


@pytest.mark.parametrize("read", list(ORDERED.values()), ids=list(ORDERED))
def test_several_rows_are_picked_in_their_order(read, monkeypatch):
    model, inputs = reading(read), of_tensor(torch.randn(1, 9, D).double())
    target = Target(torch.tensor([1]), position=torch.tensor([[2, 6]]))
    expected = in_full(model, inputs, target)
    for _ in range(2):
        explained(model, inputs, target)
    counts = rows_run(monkeypatch, lambda: same(explained(model, inputs, target), expected))
    assert counts == [9, 2, None]


CHANGED = {
    "mean": ELSEWHERE["mean"],
    "another row": ELSEWHERE["another row"],
    "an axis less": lambda x: x.mean(-1)[:, :D],
    "written into": lambda x: x.masked_fill_(torch.arange(9).unsqueeze(-1) > 3, 0.0)[:, 0],
}


@pytest.mark.parametrize("read", list(CHANGED.values()), ids=list(CHANGED))
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


def queries_run(monkeypatch, run):
    """How many queries each attention call is made for."""
    counts = []
    with monkeypatch.context() as patch:
        for name in ("_frozen_fused", "_shared_fused"):
            patch.setattr(Products, name, counting(getattr(Products, name), counts))
        run()
    return counts


def counting(attend, counts):
    def counted(self, tracer, call, given):
        counts.append(given.query.shape[-2])
        return attend(self, tracer, call, given)

    return counted


LONG = [[5 + (7 * i) % 90 for i in range(300)], [5 + (11 * i) % 90 for i in range(271)]]
DECODERS = {
    "few keys": (IDS[1:], {}, 1),
    "padding": (IDS, {}, 2),
    "many keys": (LONG[:1], {}, 1),
    "many keys, padding": (LONG, {}, 2),
    "grouped heads": (LONG, {"num_key_value_heads": 1}, 2),
}


@pytest.mark.parametrize("name", ["lrp", "attn_lrp"])
@pytest.mark.parametrize("case", list(DECODERS.values()), ids=list(DECODERS))
def test_the_last_attention_runs_for_the_queries_that_are_read(case, name, monkeypatch):
    ids, settings, read = case
    model = tiny("llama", "write", max_position_embeddings=512, **settings)
    inputs = of_ids(model, ids)
    target = asked(inputs, 1)
    expected = in_full(model, inputs, target, name)
    for _ in range(2):
        same(explained(model, inputs, target, name), expected)
    counts = queries_run(
        monkeypatch, lambda: same(explained(model, inputs, target, name), expected)
    )
    longest = max(map(len, ids))
    assert counts == [longest, read]


class ReadsHeads(Reads):
    """As `Reads`, its heads put together as models do it; `look` sees them on their way."""

    def __init__(self, look):
        super().__init__(lambda x: x[:, 0])
        self.look, self.attention = look, nn.Identity()

    def attend(self, x):
        heads = self.mix(x).unflatten(-1, (2, 3)).transpose(1, 2)
        queries = x.unflatten(-1, (2, 3)).transpose(1, 2)
        return F.scaled_dot_product_attention(queries, queries, heads)

    def forward(self, x):
        # the module that attends has a name
        self.attention.forward = self.attend
        seen = self.attention(x)
        seen, more = self.look(seen)
        joined = seen.transpose(1, 2).contiguous().flatten(2)
        return self.head(self.read(x + F.gelu(self.layer(joined)))) + more


LOOKS = {
    "all rows": (lambda seen: (seen, seen.sum((1, 2, 3)).unsqueeze(1)), None),
    "another row": (lambda seen: (seen, seen[:, :, 4].sum((1, 2)).unsqueeze(1)), None),
    "rows mixed": (
        lambda seen: (seen.reshape(len(seen), 9, 2, 3).transpose(1, 2), 0.0),
        None,
    ),
    "axes mixed": (lambda seen: (seen.mT.contiguous().mT.flip(2), 0.0), None),
    "nothing": (lambda seen: (seen, 0.0), 1),
    "a cast": (lambda seen: (seen.to(torch.float64), 0.0), 1),
}


@pytest.mark.parametrize("share", [0.0, 0.25])
@pytest.mark.parametrize("case", list(LOOKS.values()), ids=list(LOOKS))
def test_heads_that_are_read_elsewhere_are_all_computed(case, share, monkeypatch):
    look, queries = case
    torch.manual_seed(0)
    model, inputs = ReadsHeads(look).double().eval(), of_tensor(torch.randn(2, 9, D).double())
    target = Target(torch.tensor([0, 1]))
    plain = method("lrp", attention=share)
    run = lambda: plain(subject_of(model, inputs), inputs, target)  # noqa: E731
    expected = run()
    for _ in range(3):
        same(run(), expected)
    assert queries_run(monkeypatch, lambda: same(run(), expected)) == [queries or 9]


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

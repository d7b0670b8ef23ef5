"""Implementation invariance: rewrites are found, keep the function, and are undone."""

import pytest
import torch
from torch import nn

from benchmarks.tiny import model
from tests.audits.cases import ROWS, case_of, case_of_ids, random_case
from tests.helpers import exactly
from tests.modules import Pooled, Vision
from wherefrom import method
from wherefrom.audits.altered_models import in_float64, on_copy, scores_at_input
from wherefrom.audits.axioms import score_change
from wherefrom.audits.feature_trace import Trace
from wherefrom.audits.rewrites import KINDS, rewrites
from wherefrom.methods.forward_pass import run
from wherefrom.testing import differences, snapshot, untouched


def rewrites_of(case):
    return {rewrite.kind: rewrite for rewrite in rewrites(case.runner, [case.batch])}


EXPECTED = {  # sites of hidden, heads, channels, values, norms
    ("bert", "sdpa"): (3, 2, 2, 2, 1),
    ("bert", "eager"): (3, 2, 2, 2, 1),
    ("gpt2", "sdpa"): (2, 2, 2, 2, 5),
    ("gpt2", "eager"): (2, 2, 2, 2, 5),
    ("llama", "sdpa"): (2, 0, 2, 2, 5),  # rotated queries and keys are not understood
    ("llama", "eager"): (2, 0, 2, 2, 5),
}


@pytest.mark.parametrize(("family", "attention"), list(EXPECTED))
def test_rewrites_are_found_and_keep_the_function_on_other_inputs_too(family, attention):
    module = model(family, "classify", attn_implementation=attention)
    case = case_of_ids(module)
    by_kind = rewrites_of(case)
    counts = tuple(len(by_kind[kind].sites) for kind in KINDS)
    assert counts == EXPECTED[family, attention]
    other = torch.tensor(ROWS[1:])
    with torch.no_grad():
        expected = module(input_ids=other).logits
        for rewrite in by_kind.values():
            before = {name: p.clone() for name, p in module.named_parameters()}
            as_it_was = snapshot(module)
            with rewrite.applied():
                changed = sum(not torch.equal(before[n], p) for n, p in module.named_parameters())
                exactly(module(input_ids=other).logits, expected, 1e-6)
                assert (changed > 0) == bool(rewrite.sites)
            written = ["counts of writes"] if rewrite.sites else []
            assert differences(as_it_was, snapshot(module)) == written


def test_layers_of_torch_itself_are_found_by_what_they_do():
    by_kind = rewrites_of(random_case(Vision(4)))
    counts = {kind: len(rewrite.sites) for kind, rewrite in by_kind.items()}
    assert counts == {"hidden": 2, "heads": 2, "channels": 2, "values": 2, "norms": 4}


def test_a_hidden_layer_is_permuted_row_by_row_and_column_by_column():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 3)).double()
    wrapped = nn.Sequential(net, nn.Flatten(1)).double()
    case = case_of(wrapped, torch.randn(1, 6, dtype=torch.float64))
    first, last = net[0], net[2]
    was = [p.detach().clone() for p in (first.weight, first.bias, last.weight)]
    (rewrite,) = [r for r in rewrites_of(case).values() if r.sites]
    assert rewrite.kind == "hidden"
    with rewrite.applied():
        order = [int((was[0] == row).all(1).nonzero()) for row in first.weight]
        assert sorted(order) == list(range(8))
        assert all(i != j for i, j in enumerate(order))  # nothing stays in its place
        exactly(first.bias.detach(), was[1][order])
        exactly(last.weight.detach(), was[2][:, order])


def test_a_norm_is_folded_as_the_textbook_says():
    torch.manual_seed(0)
    norm, last = nn.LayerNorm(6).double(), nn.Linear(6, 3).double()
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    weight, bias = (
        (last.weight * norm.weight).detach(),
        (last.bias + last.weight @ norm.bias).detach(),
    )
    case = case_of(nn.Sequential(norm, last, nn.Flatten(1)), torch.randn(1, 6))
    with rewrites_of(case)["norms"].applied():
        exactly(norm.weight.detach(), torch.ones(6))
        exactly(norm.bias.detach(), torch.zeros(6))
        exactly(last.weight.detach(), weight)
        exactly(last.bias.detach(), bias)


class Residual(nn.Module):
    """What a hidden layer makes is also added to the input: nothing here can be moved."""

    def __init__(self):
        super().__init__()
        self.inner, self.head = nn.Linear(6, 6), nn.Linear(6, 3)
        self.double()

    def forward(self, x):
        return self.head(x + torch.relu(self.inner(x)))[:, 0]


def test_what_is_not_understood_is_left_alone():
    for module in (Residual(), Pooled()):
        assert not any(r.sites or r.dropped for r in rewrites_of(random_case(module)).values())


def test_a_place_where_the_outputs_move_is_dropped_and_counted():
    # the last norm is read by a head that is also the table of words
    module = model("gpt2", "write", vocab_size=120)
    norms = rewrites_of(case_of_ids(module))["norms"]
    assert norms.dropped == 1
    assert len(norms.sites) == 4
    # heads of T5 have a bias each, by distance, where there is one
    heads = rewrites_of(case_of_ids(model("t5", "classify"), [5, 17, 33, 8, 2]))["heads"]
    assert heads.dropped > 0
    assert heads.output_change < 1e-12


def test_a_model_of_images_is_rewritten_too(image_case):
    by_kind = rewrites_of(image_case)
    counts = {kind: len(rewrite.sites) for kind, rewrite in by_kind.items()}
    assert counts == {"hidden": 4, "heads": 4, "channels": 4, "values": 4, "norms": 9}


def test_rewrites_change_transformer_attribution_but_not_gradients(gpt2_case):
    by_kind = rewrites_of(gpt2_case)
    for name in ("gradient_x_input", "lrp", "attention_rollout"):
        before = scores_at_input(gpt2_case, method(name)).values
        for rewrite in by_kind.values():
            with rewrite.applied():
                assert score_change(method(name), gpt2_case, before) < 1e-6, (name, rewrite.kind)
        assert score_change(method(name), gpt2_case, before) == 0  # weights are restored
    chefer = method("transformer_attribution")
    before = scores_at_input(gpt2_case, chefer).values
    with by_kind["norms"].applied():
        assert score_change(chefer, gpt2_case, before) > 0.01


class OneHead(nn.Module):
    """Attention over the rows of a matrix, without an axis of heads or of samples."""

    def __init__(self, constants=0):
        super().__init__()
        torch.manual_seed(4)
        self.query, self.key, self.value = (nn.Linear(6, size) for size in (6, 6, 6 - constants))
        self.out, self.constants = nn.Linear(6, 3), constants
        self.double()

    def forward(self, x):
        rows = x[0]
        values = torch.cat([self.value(rows), rows.new_ones(len(rows), self.constants)], -1)
        mixed = (self.query(rows) @ self.key(rows).T).softmax(-1) @ values
        return self.out(mixed).mean(0, keepdim=True)


def test_attention_over_a_matrix_is_understood():
    case = random_case(OneHead())
    by_kind = rewrites_of(case)
    assert len(by_kind["channels"].sites) == len(by_kind["values"].sites) == 1
    before = run(case)
    for kind in ("channels", "values"):
        with by_kind[kind].applied():
            exactly(run(case), before)


def test_values_that_are_partly_constant_are_left_alone():
    module = OneHead(constants=2)
    with Trace() as trace:
        module(random_case(module).batch.tensors["x"])
    assert trace.heads == []  # what is read by the output layer is not the features of a head
    assert -1 not in trace.of_head
    assert not rewrites_of(random_case(module))["values"].sites


# Cases and copies.


def test_a_copy_is_in_float64_and_the_model_stays_as_it_is():
    module = model("bert", "classify").float()
    case = case_of_ids(module)
    with untouched(module):
        copied = on_copy(case, in_float64(case.runner))
        rewrites(copied.runner, [copied.batch])
    assert run(copied).dtype == torch.float64
    assert module.dtype == torch.float32

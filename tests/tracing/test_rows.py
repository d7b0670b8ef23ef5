"""The backward pass skips rows without a gradient, and no result changes."""

import pytest
import torch
from torch.nn import functional as F
from torch.testing import assert_close

from wherefrom.rules.attention import frozen_attention
from wherefrom.rules.linear import _RowsLinear

rows_linear = _RowsLinear.apply


def gradients_of(function, x, rows):
    """The gradient at x of a function's output, read at some rows only."""
    leaf = x.clone().requires_grad_()
    out = function(leaf)
    weights = torch.zeros_like(out)
    weights[:, rows] = torch.randn(
        out[:, rows].shape, generator=torch.Generator().manual_seed(1)
    ).to(out)
    (gradient,) = torch.autograd.grad((out * weights).sum(), leaf)
    return out, gradient


@pytest.mark.parametrize("rows", [[0], [3, 8], list(range(11)), []])
@pytest.mark.parametrize("bias", [True, False])
def test_a_linear_layer_has_the_gradient_of_autograd_whichever_rows_are_read(rows, bias):
    torch.manual_seed(0)
    x, weight = torch.randn(4, 11, 6).double(), torch.randn(5, 6).double()
    b = torch.randn(5).double() if bias else None
    expected = gradients_of(lambda t: F.linear(t, weight, b), x, rows)
    assert_close(gradients_of(lambda t: rows_linear(t, weight, b), x, rows), expected)


def test_most_rows_without_a_gradient_are_not_multiplied(monkeypatch):
    products = []
    times = torch.Tensor.__matmul__

    def counted(left, right):
        products.append(left.numel() // left.shape[-1])
        return times(left, right)

    monkeypatch.setattr(torch.Tensor, "__matmul__", counted)
    weight = torch.randn(5, 6)
    for rows, multiplied in (([0], 4), (list(range(11)), 4 * 11)):
        products.clear()
        gradients_of(lambda t: rows_linear(t, weight, None), torch.randn(4, 11, 6), rows)
        assert products == [multiplied]


@pytest.mark.parametrize("explained", [[7], [7, 4999], list(range(5000))])
def test_of_many_outputs_those_with_a_gradient_are_multiplied(explained, monkeypatch):
    torch.manual_seed(0)
    x, weight = torch.randn(2, 1, 6).double(), torch.randn(5000, 6).double()
    widths, times = [], torch.Tensor.__matmul__

    def counted(left, right):
        widths.append(left.shape[-1])
        return times(left, right)

    monkeypatch.setattr(torch.Tensor, "__matmul__", counted)
    leaf = x.clone().requires_grad_()
    out = rows_linear(leaf, weight, None)
    weights = torch.zeros_like(out)
    weights[..., explained] = torch.randn(2, 1, len(explained)).double()
    (gradient,) = torch.autograd.grad(out, leaf, weights)
    assert_close(gradient, torch.einsum("bto,oi->bti", weights, weight))
    assert widths == [len(explained)]


def test_the_class_tokens_of_a_batch_are_seen_to_be_the_only_rows(monkeypatch):
    products, times = [], torch.Tensor.__matmul__
    monkeypatch.setattr(
        torch.Tensor, "__matmul__", lambda a, b: products.append(len(a)) or times(a, b)
    )
    for batch in (2, 3, 8):
        gradients_of(
            lambda t: rows_linear(t, torch.ones(5, 6), None),
            torch.randn(batch, 16, 6),
            [0],
        )
    assert products == [2, 3, 8]


def test_a_gradient_that_is_not_finite_stays_visible():
    leaf = torch.randn(2, 16, 6).requires_grad_()
    out = rows_linear(leaf, torch.randn(5, 6), None)
    weights = torch.zeros_like(out)
    weights[0, 3] = torch.nan
    (gradient,) = torch.autograd.grad(out, leaf, weights)
    assert gradient[0, 3].isnan().all()
    assert gradient[1].eq(0).all()


@pytest.mark.parametrize("causal", [True, False])
def test_frozen_attention_read_at_one_query_has_the_gradient_of_autograd(causal):
    torch.manual_seed(0)
    query, key, value = torch.randn(3, 2, 4, 70, 8).double()
    mixed = []
    for function in (F.scaled_dot_product_attention, frozen_attention):
        leaf = value.clone().requires_grad_()
        out = function(query, key, leaf, is_causal=causal)
        mixed.append(torch.autograd.grad(out[:, :, -1].sum(), leaf)[0])
    assert_close(*mixed)

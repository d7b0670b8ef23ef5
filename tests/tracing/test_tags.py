"""Roles and streams of tensors, passed from call to call."""

import torch

from wherefrom.tracing.catalogue import TorchCall
from wherefrom.tracing.tags import NO_TAG, Tag, like, mark, propagate, role_of, set_tag, tag_of


def test_a_meaning_is_kept_where_all_that_is_live_has_it():
    weights = mark(torch.ones(2, 2, requires_grad=True), "softmax")
    plain = torch.ones(2, 2, requires_grad=True)
    for other, role in ((weights, "softmax"), (plain, ""), (torch.ones(2, 2), "softmax")):
        out = weights * other
        propagate(TorchCall(torch.mul, (weights, other)), out)
        assert role_of(out) == role
    product = weights @ torch.ones(2, 2)
    propagate(TorchCall(torch.matmul, (weights, torch.ones(2, 2))), product)
    assert role_of(product) == ""  # mixed values are not weights


def test_a_tag_is_read_written_and_copied():
    tensor, other = torch.ones(2), torch.ones(2)
    assert tag_of(tensor) is NO_TAG
    mark([tensor, (other,)], "gate")
    assert role_of(tensor) == role_of(other) == "gate"
    set_tag(tensor, Tag(stream=3))
    assert tag_of(like(other, tensor)) == Tag(stream=3)
    assert tag_of(mark(other, "exp")) == Tag("exp", 3)  # the stream stays

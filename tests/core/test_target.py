"""Targets: selected samples, devices, and spans with weights."""

import torch

from wherefrom.core.target import SpanTarget, Target


def test_a_span_is_taken_and_moved_with_its_weights():
    numbers = torch.arange(6).reshape(3, 2)
    target = SpanTarget(numbers, None, numbers + 10, weights=numbers / 2, log=True)
    some = target.take([2, 0])
    assert isinstance(some, SpanTarget)
    assert some.log
    assert some.against is None
    assert some.index.tolist() == [[4, 5], [0, 1]]
    assert some.position.tolist() == [[14, 15], [10, 11]]
    assert some.weights.tolist() == [[2.0, 2.5], [0.0, 0.5]]
    moved = target.to(torch.device("meta"))
    tensors = (moved.index, moved.position, moved.weights)
    assert [tensor.device.type for tensor in tensors] == ["meta"] * 3
    first = some.first
    assert type(first) is Target
    assert first.index.tolist() == [4, 0]

"""The attention maps of one input and their gradients, by transformers' own outputs."""

from dataclasses import dataclass

import torch
from torch import Tensor

from tests.oracles.bert import Bert


@dataclass
class Seen:
    """Maps (heads, query, key) in the order of the forward pass, from stream to stream.

    Stream 0 is the encoder or the only one, stream 1 the decoder. The joint space has the places
    of all streams one after the other.
    """

    maps: list[Tensor]
    gradients: list[Tensor]
    ways: list[tuple[int, int]]
    sizes: list[int]
    readout: Tensor  # over the places of the last map's queries

    def at(self, stream: int) -> slice:
        """The stream's places in the joint space."""
        first = sum(self.sizes[:stream])
        return slice(first, first + self.sizes[stream])

    def rows(self, every: bool = False) -> Tensor:
        """What is read, over the joint space."""
        found = torch.zeros(sum(self.sizes), dtype=torch.float64)
        last = self.ways[-1][0]
        found[self.at(last)] = torch.ones(self.sizes[last]).double() if every else self.readout
        return found


def one_hot(place: int, size: int) -> Tensor:
    return torch.eye(size, dtype=torch.float64)[place]


def bert(model, ids, target, scales=None, fixed=None) -> Seen:
    """A BERT classifier; `scales` gives each map's size, `fixed` puts constants in their place."""
    taken: list[Tensor] = []

    def keep(weights: Tensor) -> Tensor:
        scaled = weights * (1.0 if scales is None else scales[len(taken)])
        if fixed is not None and len(taken) in fixed:
            scaled = fixed[len(taken)].clone().requires_grad_()
        taken.append(scaled)
        return scaled

    oracle = Bert(model, attention=keep)
    out = oracle(sum(oracle.embedded(ids)).requires_grad_())[target]
    gradients = torch.autograd.grad(out, taken)
    maps = [each.detach() for each in taken]
    size = len(ids)
    return Seen(maps, list(gradients), [(0, 0)] * len(maps), [size], one_hot(0, size))


def decoder(model, ids, target) -> Seen:
    """A language model, asked for the next token after the last."""
    out = model(torch.tensor([ids]), output_attentions=True)
    size = len(ids)
    ways = [(0, 0)] * len(out.attentions)
    return _seen(out.logits[0, -1, target], out.attentions, ways, [size], one_hot(-1, size))


def both(model, ids, prefix, target) -> Seen:
    """An encoder–decoder, asked for the next token after the prefix."""
    out = model(
        input_ids=torch.tensor([ids]),
        decoder_input_ids=torch.tensor([prefix]),
        output_attentions=True,
    )
    maps, ways = _in_order(out)
    sizes = [len(ids), len(prefix)]
    return _seen(out.logits[0, -1, target], maps, ways, sizes, one_hot(-1, len(prefix)))


def shifted(model, ids, target) -> Seen:
    """An encoder–decoder that classifies: the decoder reads the ids moved by one place."""
    out = model(input_ids=torch.tensor([ids]), output_attentions=True)
    maps, ways = _in_order(out)
    size = len(ids)
    return _seen(out.logits[0, target], maps, ways, [size, size], one_hot(-1, size))


def _in_order(out) -> tuple[list[Tensor], list[tuple[int, int]]]:
    maps, ways = list(out.encoder_attentions), [(0, 0)] * len(out.encoder_attentions)
    for own, cross in zip(out.decoder_attentions, out.cross_attentions, strict=True):
        maps += [own, cross]
        ways += [(1, 1), (1, 0)]
    return maps, ways


def _seen(output, maps, ways, sizes, readout) -> Seen:
    gradients = torch.autograd.grad(output, list(maps))
    return Seen([m[0].detach() for m in maps], [g[0] for g in gradients], ways, sizes, readout)

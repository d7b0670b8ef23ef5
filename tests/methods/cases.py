"""Models and inputs whose attention maps the oracle computes."""

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from tests.methods.calling import family, of_ids
from tests.oracles import attended
from tests.oracles.attended import Seen

IDS = [2, 17, 9, 33, 8, 41, 3]
PREFIX = [1, 44, 21]
FEWER_PASSES = {  # settings for tests where the number of passes does not matter
    "smoothgrad": {"samples": 4},
    "integrated_gradients": {"steps": 6},
    "path_gradients": {"steps": 6},
    "dix": {"steps": 4},
    "shapley": {"budget": 200},
}


@dataclass
class Case:
    """The maps of the oracle, and a model for each attention implementation."""

    seen: Seen
    models: dict
    ids: list
    target: int
    prefix: list | None = None
    shifted: bool = False
    narrow: bool = False  # its eager attention computes the softmax in float32

    def inputs(self, how="sdpa"):
        return of_ids(self.models[how], [self.ids], self.prefix)

    def units(self, joint: Tensor) -> Tensor:
        """Values of positions as values of units; a shifted copy counts for the original."""
        if not self.shifted:
            return joint
        size = len(self.ids)
        units = joint[:size].clone()
        units[:-1] += joint[size + 1 :]
        return units

    def tolerance(self, how):
        return 3e-5 if self.narrow and how == "sdpa" else 1e-8


def _models(name, task, **changes):
    made = {"eager": family(name, task, attn_implementation="eager", **changes)}
    fused = getattr(made["eager"], "_supports_sdpa", True)  # T5 not before transformers 5
    how = "sdpa" if fused else "eager"
    return {**made, "sdpa": family(name, task, attn_implementation=how, **changes)}


def _gpt2():
    models = _models("gpt2", "write")
    return Case(attended.decoder(models["eager"], IDS, 9), models, IDS, 9)


def _bert():
    models = _models("bert", "classify")
    return Case(attended.bert(models["eager"], IDS, 1), models, IDS, 1)


def _llama():
    models = _models("llama", "write")
    return Case(attended.decoder(models["eager"], IDS, 9), models, IDS, 9, narrow=True)


def _writer(name, prefix):
    models = _models(name, "translate")
    seen = attended.both(models["eager"], IDS, prefix, 9)
    return Case(seen, models, IDS, 9, prefix, narrow=name == "t5")


def _reader():
    models, ids = _models("bart", "classify"), [*IDS[:-1], 2]
    return Case(attended.shifted(models["eager"], ids, 1), models, ids, 1, shifted=True)


CASES = {
    "bert": _bert,
    "gpt2": _gpt2,
    "llama": _llama,
    "bart": lambda: _writer("bart", PREFIX),
    "bart of equal lengths": lambda: _writer("bart", [1, *IDS[1:]]),
    "bart that classifies": _reader,
    "t5": lambda: _writer("t5", PREFIX),
    "t5 of equal lengths": lambda: _writer("t5", [1, *IDS[1:]]),
}


@cache
def case(name) -> Case:
    return CASES[name]()


def mean_pooled_block(module, x):
    """What the oracle sees of tests.modules.Block on one sample x (units, features)."""
    q, k, v = module.qkv(module.norm(x)).chunk(3, -1)
    weights = (q @ k.mT * x.shape[-1] ** -0.5).softmax(-1)
    hidden = x + weights @ v
    gate, value = module.up(module.norm(hidden)).chunk(2, -1)
    last = hidden + module.down(torch.nn.functional.silu(gate) * value)
    out = module.head(last.mean(0))
    gradients = torch.autograd.grad(out[1], (weights, last))
    read = (last * gradients[1]).sum(-1).abs().detach()
    return Seen(
        [weights.detach()[None]], [gradients[0][None]], [(0, 0)], [len(x)], read / read.sum()
    )

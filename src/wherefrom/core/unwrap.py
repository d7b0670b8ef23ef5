"""The plain module inside a compiled or parallel model."""

from __future__ import annotations

import copy
from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from wherefrom.core.torch_internals import (
    compiled_original,
    has_compiled_call,
    replace_submodules,
    submodules,
    uncompiled_function,
)


def unwrap(model: nn.Module) -> nn.Module:
    """The module inside the wrappers of `torch.compile`, `DataParallel` and the like.

    Compiled code cannot be intercepted, and parallel wrappers hide the config. Modules that were
    compiled in place, at any depth, are replaced by views that share all weights.
    """
    return _plain(model, {})


def _plain(module: nn.Module, cache: dict[int, nn.Module]) -> nn.Module:
    if id(module) not in cache:
        inner = _inner(module)
        cache[id(module)] = _view(module, cache) if inner is None else _plain(inner, cache)
    return cache[id(module)]


def _inner(module: nn.Module) -> nn.Module | None:
    """The module inside a wrapper."""
    if isinstance(module, (nn.DataParallel, DistributedDataParallel)):
        wrapped: nn.Module = module.module
        return wrapped
    original = compiled_original(module)
    return original if isinstance(original, nn.Module) else None


def _view(module: nn.Module, cache: dict[int, nn.Module]) -> nn.Module:
    """The module itself, or a view of it without compiled parts."""
    children = {
        name: None if child is None else _plain(child, cache)
        for name, child in submodules(module).items()
    }
    same = all(child is submodules(module)[name] for name, child in children.items())
    forward = vars(module).get("forward")  # model.forward = torch.compile(model.forward)
    original = uncompiled_function(forward)
    if same and original is None and not has_compiled_call(module):
        return module
    view: Any = copy.copy(module)  # shares parameters and buffers, drops the compiled call
    replace_submodules(view, children)
    if original is not None:
        del view.__dict__["forward"]
        if getattr(original, "__func__", None) is not type(module).forward:
            view.__dict__["forward"] = original
    plain: nn.Module = view
    return plain

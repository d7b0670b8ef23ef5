"""All private names of torch that this package uses; the plain module inside a compiled one.

`tests/test_torch_internals.py` checks each of them, and that no other file uses such a name.
"""

from __future__ import annotations

import copy
import math
import threading
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend
from torch.nn.parallel import DistributedDataParallel
from torch.overrides import _get_current_function_mode_stack

# Calls within this context reach no TorchFunctionMode and no __torch_function__.
without_function_modes = torch._C.DisableTorchFunction
# The functions behind torch.nn.functional that are written in C++.
NATIVE_FUNCTIONS: Any = torch._C._nn


def function_modes() -> list[Any]:
    """The function modes that are open in this thread, the outermost first."""
    modes: list[Any] = _get_current_function_mode_stack()
    return modes


count_function_modes = torch._C._len_torch_function_stack
pop_function_mode = torch._C._pop_torch_function_stack
function_state = torch._C._get_torch_function_state  # type: ignore[attr-defined]
set_function_state = torch._C._set_torch_function_state  # type: ignore[attr-defined]
with without_function_modes():
    ALL_DISABLED: Any = function_state()
# as torch.set_grad_enabled and torch.inference_mode, in one instruction and without a context
set_grad_enabled = torch._C._set_grad_enabled
inference_guard = torch._C._InferenceMode
_AUTOGRAD: Any = torch._C._autograd


class _Pushed(threading.local):
    """The hooks on saved tensors that were pushed here; torch 2.6 and 2.7 cannot list them.

    A hook is listed before it is pushed, so that an interrupt does not lose it. To find out whether
    it was pushed, autograd saves a probe, which it passes to the innermost hook.
    """

    def __init__(self) -> None:
        self.packs: list[Any] = []
        self.probe: Tensor | None = None
        self.answer: Any = None

    def push(self, pack: Any, unpack: Any) -> None:
        def receive(tensor: Tensor) -> Any:
            if tensor is self.probe:
                self.answer = pack
                return None
            return pack(tensor)

        self.packs.append(pack)
        _AUTOGRAD._push_saved_tensors_default_hooks(receive, unpack)

    def pop(self) -> None:
        if self._innermost() is self.packs[-1]:
            _AUTOGRAD._pop_saved_tensors_default_hooks()
        del self.packs[-1]

    def _innermost(self) -> Any:
        self.answer = None
        with torch.inference_mode(False), torch.enable_grad(), without_function_modes():
            self.probe = torch.zeros((), requires_grad=True)
            self.probe.sin()
            self.probe = None
        answer, self.answer = self.answer, None  # or the hook would stay referenced
        return answer


_PUSHED = _Pushed()
TELLS_SAVED_HOOKS = hasattr(_AUTOGRAD, "_top_saved_tensors_default_hooks")  # torch 2.8 and newer


def push_saved_tensors_hooks(pack: Any, unpack: Any) -> None:
    """Pushes hooks: autograd passes the tensors that it saves to `pack`."""
    if TELLS_SAVED_HOOKS:
        _AUTOGRAD._push_saved_tensors_default_hooks(pack, unpack)
    else:
        _PUSHED.push(pack, unpack)


def pop_saved_tensors_hooks() -> None:
    """Pops the innermost hooks on saved tensors."""
    if TELLS_SAVED_HOOKS:
        _AUTOGRAD._pop_saved_tensors_default_hooks()
    else:
        _PUSHED.pop()


def saved_tensors_pack() -> Any:
    """The function that receives the tensors that autograd saves; None if there is none.

    In torch 2.6 and 2.7 only those that were pushed here are known.
    """
    if not TELLS_SAVED_HOOKS:
        return _PUSHED.packs[-1] if _PUSHED.packs else None
    hooks = _AUTOGRAD._top_saved_tensors_default_hooks(True)
    return None if hooks is None else hooks[0]


def global_hooks() -> tuple[Any, Any]:
    """The registries of global hooks before and after the forward of all modules."""
    registries = nn.modules.module
    return registries._global_forward_pre_hooks, registries._global_forward_hooks


def global_hooks_with_kwargs() -> Any:
    """The keys of global forward hooks that get keyword arguments."""
    return nn.modules.module._global_forward_hooks_with_kwargs


def version_of(tensor: Tensor) -> int:
    """How often a tensor, or a view of it, was written into."""
    return 0 if tensor.is_inference() else tensor._version


def view_base(tensor: Tensor) -> Tensor | None:
    """The base of a view; None for a tensor that is not a view."""
    return tensor._base if tensor._is_view() else None


def own_tensor(module: nn.Module, name: str) -> Tensor | None:
    """A parameter or buffer of the module itself; None if it has none of this name."""
    tensor: Tensor | None = module._parameters.get(name, module._buffers.get(name))
    return tensor


def submodules(module: nn.Module) -> dict[str, nn.Module | None]:
    """The direct submodules by name, including those that are None or have two names."""
    return module._modules


def hook_counts(module: nn.Module) -> tuple[int, int, int]:
    """The numbers of forward, forward pre- and backward hooks of a module."""
    return (
        len(module._forward_hooks),
        len(module._forward_pre_hooks),
        len(module._backward_hooks),
    )


def global_hook_registries() -> dict[str, Any]:
    """All registries of global module hooks, by name."""
    names = vars(nn.modules.module)
    return {name: registry for name, registry in names.items() if name.startswith("_global_")}


def function_class(node: type) -> type:
    """The custom `autograd.Function` of a class of backward nodes; else the class itself."""
    function: type = getattr(node, "_forward_cls", node)
    return function


def stacked(tensor: Tensor) -> Tensor:
    """Within `torch.vmap` the whole batch that a tensor stands for, else a batch of one."""
    if not torch._C._functorch.is_batchedtensor(tensor):
        return tensor.unsqueeze(0)
    axis = torch._C._functorch.maybe_get_bdim(tensor)
    return torch._C._functorch.get_unwrapped(tensor).movedim(axis, 0)


def attention_with_log_sums(
    query: Tensor, key: Tensor, value: Tensor, *, attn_mask: Tensor | None = None, **settings: Any
) -> tuple[Tensor, Tensor | None]:
    """`scaled_dot_product_attention`, and log Σ exp of each query's scores if the kernel has it.

    The CPU kernel returns it, exact enough in single and double precision to compute the weights
    from; it is 0 for a fully masked query. If the private kernel is missing or has changed, the
    public one is used.
    """
    exact = query.device.type == "cpu" and query.dtype in (torch.float32, torch.float64)
    if exact and query.ndim == 4:
        try:
            out, log_sums = _flash_attention(query, key, value, attn_mask, settings)
            if out.shape[:-1] == log_sums.shape == query.shape[:-1]:
                return out, log_sums
        except _KERNEL_ERRORS:  # real errors, such as of shapes, are raised again below
            pass
    out = F.scaled_dot_product_attention(query, key, value, attn_mask=attn_mask, **settings)
    return out, None


class _NoKernel(Exception):
    """Torch chooses another kernel for these arguments."""


_KERNEL_ERRORS = (
    _NoKernel,
    AttributeError,
    NotImplementedError,
    RuntimeError,
    TypeError,
    ValueError,
)


def _flash_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, settings: dict[str, Any]
) -> tuple[Tensor, Tensor]:
    choice = torch._fused_sdp_choice(query, key, value, mask, 0.0, **settings)
    if choice != SDPBackend.FLASH_ATTENTION.value:
        raise _NoKernel
    if mask is not None and mask.dtype == torch.bool:
        closed = torch.zeros_like(mask, dtype=query.dtype)
        mask = closed.masked_fill_(~mask, -math.inf)
    causal, scale = settings.get("is_causal", False), settings.get("scale")
    out, log_sums = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        query, key, value, 0.0, causal, attn_mask=mask, scale=scale
    )
    return out, log_sums


def sequence_number(tensor: Tensor) -> int | None:
    """The sequence number of a result's node, counted by thread; None for a leaf."""
    node: Any = tensor.grad_fn
    return None if node is None else node._sequence_nr()


def next_sequence_number() -> int:
    """The sequence number of a result that is computed now in this thread."""
    with torch.enable_grad():
        number = sequence_number(torch.zeros((), requires_grad=True).view(()))
    assert number is not None
    return number


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
    original = module.__dict__.get("_modules", {}).get("_orig_mod")  # of `torch.compile`
    return original if isinstance(original, nn.Module) else None


def _view(module: nn.Module, cache: dict[int, nn.Module]) -> nn.Module:
    """The module itself, or a view of it without compiled parts."""
    children = {
        name: None if child is None else _plain(child, cache)
        for name, child in module._modules.items()
    }
    same = all(child is module._modules[name] for name, child in children.items())
    forward = vars(module).get("forward")  # model.forward = torch.compile(model.forward)
    original = getattr(forward, "_torchdynamo_orig_callable", None)
    if same and original is None and getattr(module, "_compiled_call_impl", None) is None:
        return module
    view: Any = copy.copy(module)  # shares parameters and buffers, drops the compiled call
    view.__dict__["_modules"] = children  # the module keeps its own
    if original is not None:
        del view.__dict__["forward"]
        if getattr(original, "__func__", None) is not type(module).forward:
            view.__dict__["forward"] = original
    plain: nn.Module = view
    return plain

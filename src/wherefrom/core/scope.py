"""Scopes that change and restore the model's training flags and the state of torch.

An interrupt can arrive between any two instructions, even while a `with` statement is entered or
left. Therefore a scope records the state before it changes anything, restoring can be repeated,
and closing a scope closes all scopes that were opened within it. `restores_state` closes its scope
twice, which restores whatever an interrupt left open in a callee.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable
from functools import wraps
from traceback import clear_frames
from typing import Any, NamedTuple, ParamSpec, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_modules
from torch.overrides import TorchFunctionMode

from wherefrom.core.torch_internals import (
    ALL_DISABLED,
    count_function_modes,
    function_state,
    global_hooks,
    global_hooks_with_kwargs,
    inference_guard,
    pop_function_mode,
    pop_saved_tensors_hooks,
    push_saved_tensors_hooks,
    saved_tensors_pack,
    set_function_state,
    set_grad_enabled,
)

P = ParamSpec("P")
R = TypeVar("R")
_ATTEMPTS = 1000  # to restore, if each is interrupted


class Hooks(NamedTuple):
    """Global module hooks: before each module's forward, and after it with all arguments.

    While it is registered or removed, another thread may call the latter without the keyword
    arguments.
    """

    before: Callable[..., Any]
    after: Callable[..., Any]


class _Run(NamedTuple):
    """The scopes that run a model now, and the model's state before the first of them.

    `training`: the modules in training mode. `contents`: attributes and hooks of all modules; some
    modules store their last input, or add a hook on their first run.
    """

    scopes: set[Scope]
    training: list[nn.Module]
    contents: list[tuple[dict[str, Any], dict[str, Any]]]  # each with a copy; empty if not restored


class _Thread(threading.local):
    def __init__(self) -> None:
        self.scopes: list[Scope] = []  # open in this thread, the innermost last


_THREAD = _Thread()
_LOCK = threading.RLock()
_RUNS: weakref.WeakKeyDictionary[nn.Module, _Run] = weakref.WeakKeyDictionary()


class Scope:
    """A context that sets a model to evaluation mode or changes the state of torch.

    `model` stays in evaluation mode until the last thread that runs it leaves; with `restores`
    the attributes and hooks of its modules are restored then. `gradients` and `inference` switch
    these modes; `mode` and `hooks` handle the calls and modules of this thread; `saved` receives
    the tensors that autograd saves, and `unpack` returns them. A scope is opened once.
    """

    def __init__(
        self,
        model: nn.Module | None = None,
        *,
        gradients: bool | None = None,
        inference: bool | None = None,
        mode: TorchFunctionMode | None = None,
        hooks: Hooks | None = None,
        saved: Callable[[Tensor], Any] | None = None,
        unpack: Callable[[Any], Tensor] | None = None,
        restores: bool = False,
    ) -> None:
        self._model, self._gradients, self._inference = model, gradients, inference
        self._mode, self._saved = mode, saved
        self._hooks = hooks
        self._unpack = unpack or _same
        self._restores = restores
        self._inference_guard: Any = None
        self._scopes: list[Scope] = []

    def __enter__(self) -> Scope:
        self.open()
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def is_open(self) -> bool:
        """Whether the scope is open, and in this thread."""
        return self._scopes is _THREAD.scopes and any(scope is self for scope in self._scopes)

    @property
    def is_innermost(self) -> bool:
        """Whether no other scope was opened within this one."""
        return self.is_open and self._scopes[-1] is self

    def open(self) -> None:
        """Records the state, then changes it."""
        self._grad_before = torch.is_grad_enabled()
        self._function_state_before = function_state()
        self._modes_before: int = count_function_modes()
        self._saved_before = saved_tensors_pack()
        self._scopes = _THREAD.scopes
        try:
            self._scopes.append(self)  # from here on the state needs restoring
            self._change()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Restores the state, also that of all scopes within; does nothing if closed.

        An interrupt that arrives meanwhile is raised afterwards.
        """
        interrupt: BaseException | None = None
        for _ in range(_ATTEMPTS):
            try:
                self._restore()
                break
            except BaseException as error:
                interrupt = error
        if interrupt is not None:
            raise interrupt

    def _change(self) -> None:
        if self._model is not None:
            _locked(self._hold, self._model)
        if self._inference is not None and self._inference != torch.is_inference_mode_enabled():
            self._inference_guard = inference_guard(self._inference)
            self._inference_guard.__enter__()
        if self._gradients is not None:
            set_grad_enabled(self._gradients)
        if self._saved is not None:
            push_saved_tensors_hooks(self._saved, self._unpack)
        if self._hooks is not None:
            before: Any = self._hooks.before
            torch_modules.register_module_forward_pre_hook(before)
            torch_modules.register_module_forward_hook(self._hooks.after, with_kwargs=True)
        if self._mode is not None:
            TorchFunctionMode.__enter__(self._mode)

    def _restore(self) -> None:
        scopes = self._scopes
        if not self.is_open:  # closed, or a generator was collected in another thread
            return
        index = next(i for i, scope in enumerate(scopes) if scope is self)
        while len(scopes) > index:
            scopes[-1]._undo()
            del scopes[-1]  # at once: undoing it again after the next one would undo too much

    def _undo(self) -> None:
        """Restores this scope's state, in steps that can be repeated.

        The caller's function modes are disabled: one that stops late jobs would stop this too.
        """
        set_function_state(ALL_DISABLED)
        while count_function_modes() > self._modes_before:
            pop_function_mode()
        while saved_tensors_pack() is not self._saved_before:
            pop_saved_tensors_hooks()
        if self._inference_guard is not None:
            self._inference_guard.__exit__(None, None, None)
        set_grad_enabled(self._grad_before)
        if self._hooks is not None:
            for registry, hook in zip(global_hooks(), self._hooks, strict=True):
                _remove(registry, hook)
        if self._model is not None:
            _locked(self._release, self._model)
        set_function_state(self._function_state_before)

    def _hold(self, model: nn.Module) -> None:
        """Sets evaluation mode; another thread may run the same model and have set it already."""
        run = _RUNS.get(model)
        if run is None:
            modules = list(model.modules())
            training = [module for module in modules if module.training]
            _RUNS[model] = run = _Run({self}, training, [])
        run.scopes.add(self)
        if self._restores and not run.contents:
            run.contents.extend(_contents(list(model.modules())))
        for module in run.training:
            module.training = False

    def _release(self, model: nn.Module) -> None:
        """Restores the model, unless another scope still runs it."""
        run = _RUNS.get(model)
        if run is None or self not in run.scopes:
            return
        if run.scopes == {self}:
            for module in run.training:
                module.training = True
            for attributes, before in run.contents:
                if attributes or before:  # most are empty registries of hooks
                    _restore_contents(attributes, before)
            _RUNS.pop(model, None)
        run.scopes.discard(self)


def restores_state(function: Callable[P, R]) -> Callable[P, R]:
    """Decorates a function to restore the state when it ends, wherever it is interrupted."""

    @wraps(function)
    def restoring(*args: P.args, **kwargs: P.kwargs) -> R:
        scope, handled = Scope(), sys.exception()
        try:
            try:
                scope.open()
                return function(*args, **kwargs)
            except BaseException as error:
                _drop_frames(error, handled)
                raise
            finally:
                scope.close()
        except (
            BaseException
        ) as error:  # the same, or an interrupt that arrived while it was handled
            _drop_frames(error, handled)
            raise
        finally:
            scope.close()

    return restoring


def _drop_frames(error: BaseException, handled: BaseException | None) -> None:
    """Ends generators that an interrupt left suspended; `handled` is the caller's own exception.

    The traceback refers to frames of generators, such as torch's that pushes a mode back. They
    would continue when the traceback is dropped, after the state has been restored.
    """
    if isinstance(error, Exception):
        return
    link: BaseException | None = error
    while link is not None and link is not handled:
        clear_frames(link.__traceback__)
        link = link.__context__


def _locked(change: Callable[..., None], *arguments: nn.Module) -> None:
    """Makes a change under the lock, which is freed wherever the change is interrupted."""
    try:
        try:
            _LOCK.acquire()
            change(*arguments)
        finally:
            _unlock()
    finally:
        _unlock()


def _unlock() -> None:
    if _LOCK._is_owned():  # type: ignore[attr-defined]
        _LOCK.release()


def _contents(modules: list[nn.Module]) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """The attributes and hook registries of these modules, each with a copy."""
    contents: list[dict[str, Any]] = []
    for module in modules:
        contents.append(vars(module))
        contents += [v for k, v in vars(module).items() if "hooks" in k and isinstance(v, dict)]
    return [(attributes, dict(attributes)) for attributes in contents]


def _restore_contents(attributes: dict[str, Any], before: dict[str, Any]) -> None:
    """Restores all attributes except training flags, which `_release` restores."""
    if attributes.keys() != before.keys():
        for name in attributes.keys() - before.keys():
            attributes.pop(name, None)
    for name, value in before.items():
        if attributes.get(name, _MISSING) is not value and name != "training":
            attributes[name] = value


_MISSING = object()


def _same(tensor: Tensor) -> Tensor:
    return tensor


def _remove(registry: Any, hook: Callable[..., Any]) -> None:
    for key in [key for key, registered in list(registry.items()) if registered is hook]:
        global_hooks_with_kwargs().pop(key, None)
        registry.pop(key, None)

"""The model's own autograd Functions: written out, so that the mode sees the calls within.

`Function.apply` hides what it computes: it runs `forward` without gradients and enters a backward
pass of its own into the graph, which most often is not one that conserves. Under a table that
conserves, `forward` is therefore run as any other part of the model. Where that gives nothing that
depends on the input, as of a kernel or a library that torch does not see, the Function is run as
it is; what its own backward pass hands on more or less than its result is a line of the ledger.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.autograd.function import Function, FunctionCtx

from wherefrom.tracing.catalogue import Kind, TorchCall, depends_on_input, map_tensors, tensors_in
from wherefrom.tracing.observers.gradient_breaks import gradient_break_of
from wherefrom.tracing.tag_propagation import propagate
from wherefrom.tracing.tags import like

if TYPE_CHECKING:
    from wherefrom.tracing.tracer import Table, Tracer

# kinds whose derivative is formed of their result, which a Function may write into
KEEPS_RESULT = frozenset((Kind.SOFTMAX, Kind.LOG_SOFTMAX, Kind.EXPONENTIAL))
_FLAT = frozenset("round floor ceil trunc fix sign sgn heaviside bernoulli".split())


class _Context(FunctionCtx):
    """What `forward` notes for a backward pass that is not run."""

    needs_input_grad: tuple[bool, ...] = ()
    to_save: tuple[Any, ...] = ()
    non_differentiable: tuple[Tensor, ...] = ()

    @property
    def saved_tensors(self) -> tuple[Any, ...]:
        return self.to_save


class Writing:
    """A `forward` that is being written out.

    Within a Function gradients are off in any case, so that a `no_grad` around all of it means
    nothing; one within that, of modules that are run in it, means what it says.
    """

    def __init__(self) -> None:
        self.is_flat = False  # whether a call was seen through which no gradient passes
        self._off = 0

    def turn(self, enabled: bool) -> bool:
        """Notes that gradients are turned on or off, and says whether they are to be."""
        self._off = max(0, self._off - 1) if enabled else self._off + 1
        return enabled or self._off == 1

    def note(self, name: str, call: TorchCall) -> None:
        """Looks at a call within."""
        self.is_flat = self.is_flat or (
            name.strip("_") in _FLAT and any(map(depends_on_input, call.tensors()))
        )


def own_function(tracer: Tracer, call: TorchCall) -> Any:
    """Runs a Function's `forward` as a part of the model; the call is that of its `apply`."""
    context = _Context()
    context.needs_input_grad = tuple(map(depends_on_input, call.args))
    try:
        with tracer.writing_out() as writing:
            out = _forward(_class(call), context, call)
    except RuntimeError:
        # where nothing has a gradient, one may turn tensors into arrays or write into arguments;
        # an error of another kind is raised again by the Function itself
        return opaque(tracer, call)
    held = {id(tensor) for tensor in context.non_differentiable}
    results = [
        tensor
        for tensor in tensors_in(out)
        if tensor.is_floating_point() and id(tensor) not in held
    ]
    # rounding and its like are written as Functions for the sake of a backward pass of their own
    if writing.is_flat or (results and not any(map(_is_understood, results))):
        return opaque(tracer, call)
    if held:
        out = map_tensors(out, lambda tensor: tensor.detach() if id(tensor) in held else tensor)
    return out


def _is_understood(result: Tensor) -> bool:
    """Whether a result depends on the input through the graph, or is a constant by rule."""
    cut = gradient_break_of(result)
    return depends_on_input(result) or (cut is not None and cut.by_rule)


def _forward(kind: type[Function], context: _Context, call: TorchCall) -> Any:
    if kind.setup_context is Function.setup_context:
        return kind.forward(context, *call.args, **call.kwargs)
    bound = inspect.signature(kind.forward).bind(*call.args, **call.kwargs)
    bound.apply_defaults()
    out = kind.forward(*bound.args, **bound.kwargs)
    kind.setup_context(context, bound.args, out)
    return out


def _class(call: TorchCall) -> type[Function]:
    kind: type[Function] = call.function.__self__  # type: ignore[attr-defined]
    return kind


def opaque(tracer: Tracer, call: TorchCall) -> Any:
    """The Function as it is: Σ gradient · result − Σ gradient · argument is a line of the ledger.

    Every live argument is given as an alias, so that its gradient is that of this Function alone.
    """
    aliases = {id(x): like(x.view_as(x), x) for x in call.args if depends_on_input(x)}
    given = tuple(aliases.get(id(x), x) for x in call.args)
    out = call.function(*given, **call.kwargs)
    propagate(call, out)
    if (
        tracer.ledger.enabled and tracer.root_activations is None
    ):  # between two points it is no constant
        place = f" in {tracer.where}" if tracer.where else ""
        tracer.opaque.append(f"the autograd Function {_class(call).__name__}{place}")
        for result in tensors_in(out):
            if depends_on_input(result):
                tracer.ledger.record(result, result.detach().clone(), tracer.where, "function")
        for x in call.args:
            if depends_on_input(x):
                part = -x.detach()
                tracer.ledger.record(aliases[id(x)], part, tracer.where, "function", written=False)
    return out


OWN_FUNCTION: Table = {Kind.OWN_FUNCTION: own_function}

"""How tags are handed on from call to call.

A batch enters with its samples on the first axis. Models transpose it, flatten it, cut it into
windows or send its rows to experts. What the ledger adds up is added up by sample, so the samples
are followed exactly; where a call is not understood the answer is None. A call that the catalogue
does not list is taken to keep its rows where it keeps their number; `lrp` notices if it does not,
since its ledger then stays open.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from wherefrom.core.torch_internals import without_function_modes
from wherefrom.tracing.catalogue import (
    ELEMENTWISE,
    FRESH,
    Kind,
    TorchCall,
    attribute_name,
    depends_on_input,
    list_tensors,
    tensors_in,
)
from wherefrom.tracing.tags import NO_TAG, Role, Samples, Tag, role_of, set_tag, tag_of

Pieces = list[Samples | None]  # the samples of each tensor that a call gives


def propagate(call: TorchCall, out: Any, into_constant: bool = False) -> None:
    """Hands the tags of a call's arguments on to its result.

    A result is what all its live arguments (else all its marked ones) are. It runs along with the
    field of the first live argument that has one, and its samples are told from the call.
    `into_constant`: the call wrote into a tensor that had not been live before.
    """
    kind = call.kind
    rewritten = (kind in _LAID_OUT or kind is Kind.WRITE) and call.in_place
    if not rewritten:
        if _is_known(out):
            return  # a call made of parts that were seen themselves, or one that wrote into it
        if _keeps_its_tag(call, out):
            return
    # of calls that change the form only, a second argument gives the shape
    arguments = list_tensors(call.args[:1] if kind in FORM_ONLY else call.args)
    count = len(arguments)
    if call.kwargs:
        arguments += list_tensors(call.kwargs.values())
    tagged = [(argument, tag) for argument in arguments if (tag := tag_of(argument)) is not NO_TAG]
    if not tagged:
        return
    fresh = kind in FRESH
    role: Role = ""
    if not fresh and any(tag.role for _, tag in tagged):
        role = _common_meaning(arguments[into_constant:count])
        if role == "ids" and call.name == "remainder":
            role = "hashed"
    stream: int | None = None
    constant_rows = False
    samples: Samples | Pieces | None = None
    # an index says where rows go, not whose they are
    rows = [(argument, tag) for argument, tag in tagged if argument.is_floating_point()]
    for argument, tag in rows:
        if stream is None and argument.requires_grad:
            stream, constant_rows = tag.stream, tag.constant_rows
    for argument, tag in sorted(rows, key=_constants_last) if len(rows) > 1 else rows:
        if samples is None and tag.samples is not None:
            samples = samples_after(call, argument, tag.samples, out)
    if not role and stream is None and samples is None:
        return
    results = list_tensors(call.args[:1] if out is None else (out,))
    by_result = samples if isinstance(samples, list) else [samples] * len(results)
    if fresh:
        constant_rows = _has_constant_rows(call)
    for tensor, own in zip(results, by_result, strict=True):
        if _is_known(tensor) and not rewritten:
            continue
        own_meaning = role if into_constant else role_of(tensor) or role
        attends = kind is Kind.ATTENTION or (own_meaning == "softmax" and tensor.ndim > 1)
        if constant_rows and attends:  # queries of a constant: their rows are those of no unit
            set_tag(tensor, Tag(own_meaning, -tensor.shape[-2], own))
        else:
            set_tag(tensor, Tag(own_meaning, stream, own, constant_rows))


_BY_ROW = ELEMENTWISE | {Kind.SUM, Kind.NEGATION, Kind.PRODUCT, Kind.CAST, Kind.LINEAR}
_OF_TWO = frozenset((Kind.ATTENTION, Kind.CONTRACTION, Kind.ADDED_CONTRACTION, Kind.EINSUM))


def _keeps_its_tag(call: TorchCall, out: Any) -> bool:
    """Hands on the one tag that the live arguments of a call have in common, as most calls do.

    This is what `propagate` would find too, in a fraction of the time.
    """
    kind = call.kind
    if type(out) is not Tensor or not out.requires_grad or kind in _OF_TWO:
        return False
    common: Tag | None = None
    first: Tensor | None = None
    for argument in list_tensors(call.args):
        tag = tag_of(argument)
        if tag is NO_TAG:
            continue
        if common is None and argument.requires_grad and not (tag.role or tag.constant_rows):
            common, first = tag, argument
        elif tag is not common:
            return False
    if common is None or first is None or hasattr(out, "wherefrom_tag"):
        return False
    if any(isinstance(value, Tensor) for value in call.kwargs.values()):
        return False
    if common.samples is not None and (
        kind not in _BY_ROW
        or out.shape[:-1] != first.shape[:-1]
        or common.samples.axis >= out.ndim - 1
    ):
        return False
    out.wherefrom_tag = common  # type: ignore[attr-defined]
    return True


def _constants_last(tagged: tuple[Tensor, Tag]) -> bool:
    return not tagged[0].requires_grad


def _is_known(value: Any) -> bool:
    tag = tag_of(value)
    return tag.samples is not None or tag.stream is not None


def _has_constant_rows(call: TorchCall) -> bool:
    """Whether the rows of a product of two are those of a constant, as of queries."""
    if call.kind is Kind.ATTENTION:
        return not depends_on_input(call["query"])
    if call.kind is Kind.EINSUM:
        operands = einsum_terms(call)[2]
        return len(operands) == 2 and operands[0].ndim > 2 and not depends_on_input(operands[0])
    if call.kind is Kind.CONTRACTION or call.kind is Kind.ADDED_CONTRACTION:
        left = call["left"]
        return left.ndim > 2 and not depends_on_input(left)
    return False


def _common_meaning(arguments: list[Tensor]) -> Role:
    meanings = [tag_of(t).role for t in arguments if t.requires_grad]
    meanings = meanings or [role for t in arguments if (role := tag_of(t).role)]
    if not meanings:
        return ""
    first = meanings[0]
    return first if not first or meanings.count(first) == len(meanings) else ""


def samples_after(
    call: TorchCall, source: Tensor, samples: Samples, out: Any
) -> Samples | Pieces | None:
    """The samples of a call's result, from those of one of its arguments."""
    kind = call.kind
    if kind in _LAID_OUT or attribute_name(call.function) in ("T", "mT", "H", "mH"):
        return _laid_out(call, source, samples, out)
    result = call.args[0] if out is None and call.args else out
    if not isinstance(result, Tensor):
        return [_after(call, kind, source, samples, piece) for piece in tensors_in(result)]
    return _after(call, kind, source, samples, result)


FORM_ONLY = frozenset((Kind.CAST, Kind.RESHAPE, Kind.REPEAT))
_LAID_OUT = frozenset((Kind.RESHAPE, Kind.TRANSPOSE, Kind.REPEAT, Kind.SELECT, Kind.SPLIT))
_REDUCING = frozenset((Kind.REDUCTION, Kind.STATISTIC, Kind.ROOT, Kind.LOG_SUM))


def _after(
    call: TorchCall, kind: Kind | None, source: Tensor, samples: Samples, out: Tensor
) -> Samples | None:
    axis = samples.axis
    if kind is Kind.JOIN or kind is Kind.STACK:
        return _joined(call, source, samples, out)
    if kind is Kind.CONTRACTION or kind is Kind.ADDED_CONTRACTION:
        return _contracted(call, source, samples, out)
    if kind is Kind.EINSUM:
        return _summed(call, source, samples)
    if kind in _REDUCING and out.shape != source.shape:
        return _reduced(call, source, samples, out)
    if kind in (Kind.LINEAR, Kind.QUANTISED_LINEAR, Kind.ATTENTION, Kind.GLU):
        batch_axes = source.ndim - (2 if kind is Kind.ATTENTION else 1)
        return samples if axis < batch_axes and out.ndim == source.ndim else None
    if kind is Kind.CONVOLUTION:
        return samples if axis == 0 and out.ndim == source.ndim else None
    if call.name in ("index_add", "index_copy"):
        return samples_written(call, out)
    if kind is None and out.ndim != source.ndim:
        same = out.shape[: axis + 1] == source.shape[: axis + 1]
        return samples if same else None
    # element by element: axes are aligned from the right
    moved = axis + out.ndim - source.ndim
    if moved < 0 or moved >= out.ndim or out.shape[moved] != source.shape[axis]:
        return None
    return samples if moved == axis else Samples(moved, samples.ids)


def _laid_out(
    call: TorchCall, source: Tensor, samples: Samples, out: Any
) -> Samples | Pieces | None:
    """The call itself, made on the number of the sample that each entry belongs to."""
    if not call.args or source is not call.args[0]:
        return None
    axis = samples.axis
    if call.kind is Kind.RESHAPE or call.kind is Kind.REPEAT:
        # rows keep their order: what stands in front of an axis decides
        same = isinstance(out, Tensor) and out.ndim > axis
        if call.kind is Kind.RESHAPE:
            same = same and out.shape[: axis + 1] == source.shape[: axis + 1]
        else:
            same = same and out.ndim == source.ndim and out.shape[axis] == source.shape[axis]
        if same:
            return samples
    sizes = [1] * source.ndim
    sizes[axis] = len(samples.ids)
    numbers = samples.ids.reshape(sizes).expand(source.shape)
    with torch.no_grad(), without_function_modes():
        if call.name in ("view", "view_as", "reshape_as"):
            if not isinstance(out, Tensor) or out.numel() != source.numel():
                return None  # a view in another number type
            moved: Any = numbers.reshape(out.shape)
        elif call.entry is not None and call.entry.in_place:
            return None
        else:
            moved = call.mapped(lambda t: numbers if t is source else t.detach().cpu()).run()
    if isinstance(moved, Tensor):
        return _varying(moved)
    return [_varying(piece) for piece in tensors_in(moved)]


def _varying(numbers: Tensor) -> Samples | None:
    """The one axis along which the numbers of samples change."""
    if numbers.ndim == 0 or numbers.numel() == 0:
        return None
    # of an axis that repeats the same numbers one entry is enough
    distinct = numbers[tuple(slice(None) if step else slice(1) for step in numbers.stride())]
    axes = [
        axis
        for axis in range(numbers.ndim)
        if distinct.shape[axis] > 1 and bool((distinct != distinct.narrow(axis, 0, 1)).any())
    ]
    if len(axes) > 1:
        return None
    axis = axes[0] if axes else 0  # all of one sample: any axis says so
    first = numbers[tuple(slice(None) if i == axis else 0 for i in range(numbers.ndim))]
    return Samples(axis, first.clone())


def _joined(call: TorchCall, source: Tensor, samples: Samples, out: Tensor) -> Samples | None:
    dim = call.get("dim", 0) % out.ndim
    if call.name in ("hstack", "vstack"):
        return None
    axis = samples.axis
    if call.kind is Kind.JOIN and dim != axis:
        return samples
    parts = [tag_of(part).samples for part in call["tensors"]]
    known = [part for part in parts if part is not None and part.axis == axis]
    if call.kind is Kind.JOIN:
        if len(known) < len(parts):
            return None
        return Samples(axis, torch.cat([part.ids for part in known]))
    single = all(bool((part.ids == part.ids[0]).all()) for part in known)
    if single and len(known) == len(parts):  # samples that were taken apart are put together
        return Samples(dim, torch.stack([part.ids[0] for part in known]))
    return Samples(axis + (dim <= axis), samples.ids)


def _contracted(call: TorchCall, source: Tensor, samples: Samples, out: Tensor) -> Samples | None:
    """Matrix products: axes in front are aligned from the right, the last two are rows, columns."""
    axis, left, right = samples.axis, call["left"], call["right"]
    if call.name not in ("matmul", "bmm", "mm", "mv", "addmm", "baddbmm", "addmv"):
        return None
    if source is left:
        if left.ndim == 1 or axis == left.ndim - 1:
            return None
        moved = axis if right.ndim == 1 else axis + out.ndim - left.ndim
    elif source is right:
        if right.ndim == 1 or axis == right.ndim - 2:
            return None
        moved = axis + out.ndim - right.ndim
    else:  # what is added
        moved = axis + out.ndim - source.ndim
    fits = 0 <= moved < out.ndim and out.shape[moved] == len(samples.ids)
    return Samples(moved, samples.ids) if fits else None


def einsum_terms(call: TorchCall) -> tuple[list[str], str | None, list[Any]]:
    """The axes of each operand of an einsum, those of its result if spelled out, the operands.

    >>> einsum_terms(TorchCall(torch.einsum, ("bi, ij -> bj", 1, 2)))
    (['bi', 'ij'], 'bj', [1, 2])
    """
    equation, *operands = call.args
    if len(operands) == 1 and isinstance(operands[0], (list, tuple)):
        operands = list(operands[0])
    left, arrow, right = str(equation).replace(" ", "").partition("->")
    return left.split(","), right if arrow else None, operands


def _summed(call: TorchCall, source: Tensor, samples: Samples) -> Samples | None:
    terms, result, operands = einsum_terms(call)
    if result is None or "." in result or len(terms) != len(operands):
        return None
    for term, operand in zip(terms, operands, strict=True):
        if operand is source and "." not in term and term[samples.axis] in result:
            return Samples(result.index(term[samples.axis]), samples.ids)
    return None


def _reduced(call: TorchCall, source: Tensor, samples: Samples, out: Tensor) -> Samples | None:
    dims = call.get("dim")
    if dims is None or isinstance(dims, Tensor):
        return None
    gone = {dim % source.ndim for dim in (dims if isinstance(dims, (list, tuple)) else (dims,))}
    if samples.axis in gone:
        return None
    kept = out.ndim == source.ndim
    return samples if kept else Samples(samples.axis - sum(d < samples.axis for d in gone),
                                        samples.ids)  # fmt: skip


def samples_written(call: TorchCall, out: Tensor) -> Samples | None:
    """Rows written into a tensor by their index bring their samples along; −1 where none was."""
    before, written = tag_of(call["input"]).samples, tag_of(call["source"]).samples
    axis, index = call["dim"] % out.ndim, call["index"].detach().cpu()
    if written is None or written.axis != axis or len(written.ids) != len(index):
        return before
    if before is not None and before.axis != axis:
        return before
    ids = torch.full((out.shape[axis],), -1) if before is None else before.ids.clone()
    ids[index] = written.ids
    return Samples(axis, ids)

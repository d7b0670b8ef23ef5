"""The kind of every torch call, and its arguments by name.

This is the only list of torch functions: tables of rules, tags, observers and the search for
patches all use it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from enum import Enum, auto
from typing import Any, NamedTuple

import torch
from torch import Tensor

from wherefrom.core.torch_internals import NATIVE_FUNCTIONS

Function = Callable[..., Any]


class Kind(Enum):
    """What a call does to relevance."""

    # affine in each argument that depends on the input
    SUM = auto()
    NEGATION = auto()
    LINEAR = auto()
    QUANTISED_LINEAR = auto()
    CONVOLUTION = auto()
    BATCH_NORM = auto()
    LOOKUP = auto()
    JOIN = auto()
    STACK = auto()
    WRITE = auto()
    REDUCTION = auto()
    # norms
    LAYER_NORM = auto()
    RMS_NORM = auto()
    GROUP_NORM = auto()
    INSTANCE_NORM = auto()
    NORMALIZE = auto()
    ROOT = auto()
    # element-wise
    ACTIVATION = auto()
    HOMOGENEOUS = auto()
    EXPONENTIAL = auto()
    LOGARITHM = auto()
    POWER = auto()
    OTHER_ELEMENTWISE = auto()  # without a rule but between two points
    # products
    PRODUCT = auto()
    QUOTIENT = auto()
    ADDED_PRODUCT = auto()
    CONTRACTION = auto()
    ADDED_CONTRACTION = auto()
    BILINEAR = auto()
    EINSUM = auto()
    GLU = auto()
    SOLVE = auto()
    COSINE = auto()
    DISTANCE = auto()
    RECURRENT = auto()
    RECURRENT_CELL = auto()
    SMOOTH = auto()  # other smooth functions of several numbers
    # attention
    SOFTMAX = auto()
    LOG_SOFTMAX = auto()
    LOG_SUM = auto()
    ATTENTION = auto()
    MULTI_HEAD = auto()
    # layout and type only
    CAST = auto()
    RESHAPE = auto()
    TRANSPOSE = auto()
    REPEAT = auto()
    SELECT = auto()
    SPLIT = auto()
    # results that do not stand for their arguments
    STATISTIC = auto()
    COUNT = auto()
    # a whole activation module, whatever calls it makes
    ACTIVATION_MODULE = auto()

    # kinds are dictionary keys several times per call, and Enum's hash is slow
    __hash__ = object.__hash__


LAYOUT = frozenset(
    (Kind.RESHAPE, Kind.TRANSPOSE, Kind.REPEAT, Kind.SELECT, Kind.SPLIT, Kind.JOIN, Kind.STACK)
)
"""Calls that only rearrange numbers."""

ELEMENTWISE = frozenset(
    (Kind.ACTIVATION, Kind.HOMOGENEOUS, Kind.EXPONENTIAL, Kind.LOGARITHM, Kind.POWER, Kind.ROOT)
)
"""Non-linear functions of single numbers."""

FRESH = frozenset(
    (
        Kind.LINEAR, Kind.BILINEAR, Kind.CONTRACTION, Kind.ADDED_CONTRACTION, Kind.EINSUM,
        Kind.CONVOLUTION, Kind.LAYER_NORM, Kind.RMS_NORM, Kind.GROUP_NORM, Kind.BATCH_NORM,
        Kind.INSTANCE_NORM, Kind.QUANTISED_LINEAR, Kind.COSINE, Kind.DISTANCE, Kind.RECURRENT,
        Kind.RECURRENT_CELL, Kind.LOOKUP, Kind.ATTENTION, Kind.COUNT,
    )
)  # fmt: skip
"""Calls whose result does not keep the role of its arguments (attention weights, ids, a gate)."""


class CatalogueEntry(NamedTuple):
    """One torch function: its plain name, its kind, and the position of each parameter."""

    name: str
    kind: Kind
    positions: dict[str, int]
    keywords: dict[str, str]  # by parameter: the keyword that torch uses
    in_place: bool


_HOMES = (torch, Tensor, torch.nn.functional, torch.special, torch.linalg, NATIVE_FUNCTIONS)
_ROWS: tuple[tuple[Kind, str, str], ...] = (
    # kind, parameters in order (`ours|torch's` where torch's keyword differs), names
    (Kind.SUM, "left|input right|other alpha", "add sub subtract"),
    (Kind.SUM, "right|input left|other alpha", "rsub"),
    (Kind.NEGATION, "input", "neg negative"),
    (Kind.LINEAR, "input weight bias", "linear"),
    (Kind.QUANTISED_LINEAR, "input|X packed|W_prepack", "linear_dynamic linear_dynamic_fp16"),
    (Kind.CONVOLUTION, "input weight bias", "conv1d conv2d conv3d"),
    (Kind.CONVOLUTION, "input weight bias", "conv_transpose1d conv_transpose2d conv_transpose3d"),
    (Kind.BATCH_NORM, "input running_mean running_var weight bias", "batch_norm"),
    (Kind.LOOKUP, "ids|input weight", "embedding"),
    (Kind.JOIN, "tensors dim", "cat concat concatenate"),
    (Kind.STACK, "tensors dim", "stack"),
    (Kind.STACK, "tensors", "hstack vstack"),
    (Kind.WRITE, "input dim index source", "index_add index_copy"),
    (Kind.WRITE, "input dim index src", "scatter scatter_add"),
    (Kind.WRITE, "input pad mode value", "pad"),
    (
        Kind.WRITE,
        "input",
        "where masked_fill setitem index_put masked_scatter copy index_fill slice_scatter lerp "
        "select_scatter",
    ),
    (Kind.REDUCTION, "input dim keepdim", "sum mean"),
    (Kind.LAYER_NORM, "input normalized_shape weight bias eps", "layer_norm"),
    (Kind.RMS_NORM, "input normalized_shape weight eps", "rms_norm"),
    (Kind.GROUP_NORM, "input num_groups weight bias eps", "group_norm"),
    (
        Kind.INSTANCE_NORM,
        "input running_mean running_var weight bias use_input_stats momentum eps",
        "instance_norm",
    ),
    (Kind.NORMALIZE, "input p dim eps", "normalize"),
    (Kind.ROOT, "input", "sqrt rsqrt"),
    (Kind.ROOT, "input p|ord dim keepdim", "norm vector_norm"),
    (Kind.ROOT, "input dim keepdim", "std"),
    (
        Kind.ACTIVATION,
        "input",
        "gelu tanh sigmoid expit softplus softsign logsigmoid tanhshrink softshrink hardshrink erf "
        "erfc sin cos tan sinh cosh asin acos atan asinh atanh log1p square expm1 sinc clamp clip "
        "clamp_min clamp_max",
    ),
    (Kind.ACTIVATION, "input inplace", "silu mish relu6 hardswish hardsigmoid selu"),
    (Kind.ACTIVATION, "input alpha inplace", "elu celu"),
    (Kind.ACTIVATION, "input min_val max_val inplace", "hardtanh"),
    (Kind.ACTIVATION, "input threshold value inplace", "threshold"),
    (Kind.HOMOGENEOUS, "input inplace", "relu"),
    (Kind.HOMOGENEOUS, "input", "leaky_relu prelu rrelu abs"),
    (Kind.EXPONENTIAL, "input", "exp"),
    (Kind.LOGARITHM, "input", "log log2 log10 reciprocal"),
    (Kind.POWER, "input exponent", "pow float_power"),
    (
        Kind.OTHER_ELEMENTWISE,
        "input",
        "exp2 erfinv logit lgamma digamma i0 frac round floor ceil trunc sign sgn",
    ),
    (
        Kind.SMOOTH,
        "input",
        "cumprod solve inv inverse pinv det logdet cholesky matrix_power matrix_exp matrix_norm "
        "multi_dot cross kron vecdot logaddexp logcumsumexp pairwise_distance lp_pool1d "
        "lp_pool2d local_response_norm softmin",
    ),
    (Kind.PRODUCT, "left|input right|other", "mul multiply"),
    (Kind.QUOTIENT, "left|input right|other", "div divide true_divide truediv"),
    (Kind.ADDED_PRODUCT, "input left|tensor1 right|tensor2 value", "addcmul addcdiv"),
    (Kind.CONTRACTION, "left|input right|other", "matmul inner"),
    (Kind.CONTRACTION, "left|input right|mat2", "bmm mm"),
    (Kind.CONTRACTION, "left|input right|vec", "mv"),
    (Kind.CONTRACTION, "left|input right|vec2", "outer"),
    (Kind.CONTRACTION, "left|input right|tensor", "dot"),
    (Kind.CONTRACTION, "left|a right|b dims", "tensordot"),
    (Kind.ADDED_CONTRACTION, "input left|mat1 right|mat2 beta alpha", "addmm"),
    (Kind.ADDED_CONTRACTION, "input left|batch1 right|batch2 beta alpha", "baddbmm addbmm"),
    (Kind.ADDED_CONTRACTION, "input left|mat right|vec beta alpha", "addmv"),
    (Kind.BILINEAR, "left|input1 right|input2 weight bias", "bilinear"),
    (Kind.EINSUM, "equation", "einsum"),
    (Kind.GLU, "input dim", "glu"),
    (Kind.SOLVE, "matrix|input right|B", "solve_triangular"),
    (Kind.COSINE, "left|x1 right|x2 dim eps", "cosine_similarity"),
    (Kind.DISTANCE, "left|x1 right|x2 p", "cdist"),
    (Kind.RECURRENT, "input", "gru lstm rnn_tanh rnn_relu"),
    (Kind.RECURRENT_CELL, "input", "gru_cell lstm_cell rnn_tanh_cell rnn_relu_cell"),
    (Kind.SOFTMAX, "input dim", "softmax"),
    (Kind.LOG_SOFTMAX, "input dim", "log_softmax"),
    (Kind.LOG_SUM, "input dim keepdim", "logsumexp"),
    (
        Kind.ATTENTION,
        "query key value attn_mask dropout_p is_causal scale enable_gqa",
        "scaled_dot_product_attention",
    ),
    (Kind.MULTI_HEAD, "query key value", "multi_head_attention_forward"),
    (
        Kind.CAST,
        "input",
        "to float double half bfloat16 long int short char byte type type_as contiguous clone "
        "detach dropout requires_grad",
    ),
    (Kind.RESHAPE, "input", "view reshape flatten unflatten squeeze unsqueeze ravel"),
    (Kind.RESHAPE, "input other", "view_as reshape_as"),
    (Kind.TRANSPOSE, "input dim0 dim1", "transpose swapaxes swapdims"),
    (Kind.TRANSPOSE, "input dims", "permute"),
    (Kind.TRANSPOSE, "input source destination", "movedim moveaxis"),
    (Kind.TRANSPOSE, "input", "t"),
    (Kind.REPEAT, "input", "expand expand_as broadcast_to repeat tile"),
    (Kind.REPEAT, "input repeats dim", "repeat_interleave"),
    (Kind.SELECT, "input index", "getitem"),
    (Kind.SELECT, "input dim index", "select index_select gather"),
    (Kind.SELECT, "input dim start length", "narrow"),
    (Kind.SELECT, "input index dim", "take_along_dim"),
    (Kind.SELECT, "input dims", "flip"),
    (Kind.SELECT, "input shifts dims", "roll"),
    (Kind.SELECT, "input mask", "masked_select"),
    (Kind.SPLIT, "input sizes dim", "chunk split split_with_sizes tensor_split"),
    (Kind.SPLIT, "input dim", "unbind"),
    (
        Kind.STATISTIC,
        "input dim keepdim",
        "amax amin max min median nanmedian mode cummax cummin var prod any all",
    ),
    (Kind.STATISTIC, "input k dim", "topk kthvalue"),
    (Kind.STATISTIC, "left|input right|other", "maximum minimum"),
    (Kind.STATISTIC, "input", "max_pool1d max_pool2d max_pool3d"),
    (Kind.STATISTIC, "input", "adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d"),
    (Kind.STATISTIC, "input dim", "sort argsort"),
    (Kind.COUNT, "input", "cumsum ne eq argmax sum_to_size"),
)  # fmt: skip
_SWAPPED = {"left": "right", "right": "left", "input": "exponent", "exponent": "input"}


def _parameters(spec: str, swapped: bool) -> tuple[dict[str, int], dict[str, str]]:
    pairs = [word.partition("|") for word in spec.split()]
    ours = [_SWAPPED.get(name, name) if swapped else name for name, _, _ in pairs]
    keywords = [torch_name or name for name, _, torch_name in pairs]
    return {name: i for i, name in enumerate(ours)}, dict(zip(ours, keywords, strict=True))


def _catalogue() -> dict[Function, CatalogueEntry]:
    """All spellings of each call: `a + b`, `a += b`, `torch.add(a, b)`, `a.add_(b)`, `1 + a`."""
    entries: dict[Function, CatalogueEntry] = {}
    for kind, spec, names in _ROWS:
        for name in names.split():
            spellings = {
                name: (False, False),
                f"{name}_": (False, True),
                f"__{name}__": (False, name == "setitem"),
                f"__i{name}__": (False, True),
                f"__r{name}__": (True, False),
            }
            for spelling, (swapped, in_place) in spellings.items():
                for home in (torch.ops.quantized,) if kind is Kind.QUANTISED_LINEAR else _HOMES:
                    function = getattr(home, spelling, None)
                    if callable(function) and function not in entries:
                        entry = CatalogueEntry(name, kind, *_parameters(spec, swapped), in_place)
                        entries[function] = entry
    return entries


CATALOGUE = _catalogue()


class TorchCall:
    """One call of a torch function, with access to its arguments by name."""

    __slots__ = ("args", "entry", "function", "kind", "kwargs")

    def __init__(
        self, function: Function, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> None:
        self.function = function
        self.args = args
        self.kwargs = kwargs or {}
        self.entry = CATALOGUE.get(function)
        # None: not in the catalogue
        self.kind: Kind | None = None if self.entry is None else self.entry.kind

    @property
    def name(self) -> str:
        """The plain name of the function, whatever its spelling."""
        return plain_name(self.function) if self.entry is None else self.entry.name

    @property
    def in_place(self) -> bool:
        """Whether the call writes into its first argument."""
        entry = self.entry
        if entry is not None and entry.in_place:
            return True
        if entry is not None and not self.kwargs and "inplace" not in entry.positions:
            return False  # the common case
        return bool(self.get("inplace"))

    def get(self, parameter: str, default: Any = None) -> Any:
        """An argument by name, or the default if the call does not pass it."""
        if self.entry is not None:
            position = self.entry.positions.get(parameter)
            if position is not None and position < len(self.args):
                return self.args[position]
            parameter = self.entry.keywords.get(parameter, parameter)
        return self.kwargs.get(parameter, default)

    def __getitem__(self, parameter: str) -> Any:
        if self.entry is not None:  # as `get`, but faster for positional arguments
            position = self.entry.positions.get(parameter)
            if position is not None and position < len(self.args):
                return self.args[position]
        value = self.get(parameter, _ABSENT)
        if value is _ABSENT:
            raise KeyError(f"{self.name} was called without {parameter}")
        return value

    def with_(self, **changes: Any) -> TorchCall:
        """The same call with some arguments changed or added."""
        args, kwargs = list(self.args), dict(self.kwargs)
        for parameter, value in changes.items():
            position = None if self.entry is None else self.entry.positions.get(parameter)
            if position is not None and position < len(args):
                args[position] = value
            else:
                known = {} if self.entry is None else self.entry.keywords
                kwargs[known.get(parameter, parameter)] = value
        return TorchCall(self.function, tuple(args), kwargs)

    def run(self, **changes: Any) -> Any:
        """The result of the function, with some arguments changed."""
        call = self.with_(**changes) if changes else self
        return call.function(*call.args, **call.kwargs)

    def mapped(self, change: Callable[[Tensor], Tensor]) -> TorchCall:
        """The same call with every tensor argument changed."""
        return TorchCall(
            self.function,
            tuple(map_tensors(value, change) for value in self.args),
            {key: map_tensors(value, change) for key, value in self.kwargs.items()},
        )

    def tensors(self) -> list[Tensor]:
        """The tensors among the arguments, including those in lists and tuples."""
        tensors = list_tensors(self.args)
        return tensors + list_tensors(self.kwargs.values()) if self.kwargs else tensors


_ABSENT = object()


def plain_name(function: Function) -> str:
    """The name of a torch function for messages and counts."""
    return getattr(function, "__name__", str(function)).strip("_") or str(function)


def attribute_name(function: Function) -> str | None:
    """The attribute that a function reads (`T` of `x.T`), or None for a real call."""
    if getattr(function, "__name__", "") != "__get__":
        return None
    return getattr(getattr(function, "__self__", None), "__name__", "")


def depends_on_input(value: object) -> bool:
    """Whether a value depends on the input: in a traced pass, whether it requires a gradient."""
    return isinstance(value, Tensor) and value.requires_grad


def tensors_in(value: object) -> Iterator[Tensor]:
    """The tensors of a value, including those in lists and tuples."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_in(item)


def list_tensors(values: Iterable[object]) -> list[Tensor]:
    """The tensors of several values, including those in lists and tuples."""
    tensors: list[Tensor] = []
    for value in values:
        if isinstance(value, Tensor):
            tensors.append(value)
        elif isinstance(value, (list, tuple)):
            tensors += list_tensors(value)
    return tensors


def map_tensors(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """The value with every tensor in it changed, including those in lists and tuples."""
    if isinstance(value, Tensor):
        return change(value)
    if type(value) in (list, tuple):
        return type(value)(map_tensors(item, change) for item in value)
    return value

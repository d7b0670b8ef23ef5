"""Short digests of what a run depends on: equal digests mean equal results."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from wherefrom import __version__
from wherefrom.core.tensors import is_tensor

if TYPE_CHECKING:
    from torch import nn

_LENGTH = 16  # hexadecimal digits: 64 bits
_LIBRARIES = ("torch", "transformers", "tokenizers", "numpy")


def explainer_fingerprint(explainer: Any) -> dict[str, Any]:
    """The weights, the tokenizer and the image processor of an explainer, and all versions."""
    runner = explainer.runner
    forward = runner.forward
    return {
        "weights": weights_digest(runner.model),
        "tokenizer": _tokenizer_digest(getattr(explainer, "tokenizer", None)),
        "processor": _processor_digest(getattr(explainer, "processor", None)),
        "labels": digest(
            list(explainer.output_names.labels) if hasattr(explainer, "output_names") else None
        ),
        "forward": None if forward is None else getattr(forward, "__qualname__", repr(forward)),
        "versions": {"wherefrom": __version__} | {name: _version(name) for name in _LIBRARIES},
    }


def weights_digest(model: nn.Module) -> str:
    """A digest of all parameters and buffers, their types, and the model's class and config."""
    config: Any = getattr(model, "config", None)
    settings = config.to_dict() if hasattr(config, "to_dict") else {}
    # the path and the version that saved it do not change results
    for key in ("_name_or_path", "transformers_version"):
        settings.pop(key, None)
    return digest([type(model).__qualname__, settings, model.state_dict()])


def digest(value: Any) -> str:
    """A digest of plain data, tensors, arrays, pictures, dataclasses and the files at paths.

    Other types are represented by their `repr`. If that contains an address, the digest differs
    between runs, so a run cannot be resumed, which is safer than mixing up two runs.
    """
    state = hashlib.sha256()
    _update(state, value)
    return state.hexdigest()[:_LENGTH]


def file_digest(path: Path) -> str:
    """A digest of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:_LENGTH]


def changes(earlier: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """The differences between two fingerprints; digests are only named.

    >>> changes({"seed": 0, "data": "17"}, {"seed": 1, "data": "18"})
    ['seed 0 → 1', 'other data']
    >>> changes({"versions": {"torch": "2.6", "numpy": "2"}}, {"versions": {"torch": "2.7"}})
    ['torch 2.6 → 2.7', 'numpy 2 → None']
    """
    differences = []
    for name in dict.fromkeys([*earlier, *now]):
        before, after = earlier.get(name), now.get(name)
        if before == after:
            continue
        if name in _DIGESTS:
            differences.append(f"other {name.replace('_', ' ')}")
        elif name == "versions" and isinstance(before, dict) and isinstance(after, dict):
            differences += changes(before, after)
        else:
            differences.append(f"{name} {_short(before)} → {_short(after)}")
    return differences


_DIGESTS = (
    "weights", "tokenizer", "processor", "labels", "data", "texts", "names", "metric_settings",
)  # fmt: skip


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 200 else f"{text[:200]}…"


def _update(state: Any, value: Any) -> None:
    """Adds a value to a digest, with its type and length, so that the encoding is unambiguous."""
    if is_tensor(value):
        import torch

        value = value.detach().cpu().contiguous()
        _add(state, "tensor", f"{value.dtype} {tuple(value.shape)}".encode())
        flat = value.reshape(-1)
        flat = torch.view_as_real(flat).reshape(-1) if flat.is_complex() else flat
        _add(state, "bytes", flat.view(torch.uint8).numpy().data)
    elif isinstance(value, np.ndarray) and value.dtype != object:
        _add(state, "array", f"{value.dtype} {value.shape}".encode())
        _add(state, "bytes", np.ascontiguousarray(value).reshape(-1).view(np.uint8).data)
    elif isinstance(value, str):
        _add(state, "text", value.encode("utf-8", "surrogatepass"))
    elif isinstance(value, (bytes, bytearray)):
        _add(state, "bytes", value)
    elif isinstance(value, Path):
        _add(state, "file", (file_digest(value) if value.is_file() else str(value)).encode())
    elif isinstance(value, Mapping):
        _add(state, "mapping", str(len(value)).encode())
        for key, entry in value.items():
            _update(state, str(key))
            _update(state, entry)
    elif isinstance(value, (list, tuple)):
        _add(state, "list", str(len(value)).encode())
        for entry in value:
            _update(state, entry)
    elif isinstance(value, (set, frozenset)):
        _update(state, sorted(map(repr, value)))
    elif is_dataclass(value) and not isinstance(value, type):
        _add(state, "record", type(value).__qualname__.encode())
        for entry in fields(value):
            _update(state, getattr(value, entry.name))
    elif hasattr(value, "getbands") and hasattr(
        value, "tobytes"
    ):  # a Pillow image, without importing Pillow
        _add(state, "picture", f"{value.mode} {value.size}".encode())
        _add(state, "bytes", value.tobytes())
    else:
        _add(state, type(value).__name__, repr(value).encode("utf-8", "backslashreplace"))


def _add(state: Any, kind: str, content: Any) -> None:
    state.update(f"{kind} {len(content)}\n".encode())
    state.update(content)


def _tokenizer_digest(tokenizer: Any) -> str | None:
    if tokenizer is None:
        return None
    backend = getattr(tokenizer, "backend_tokenizer", None)
    rules: dict[str, Any]
    if backend is None:
        rules = getattr(tokenizer, "get_vocab", dict)()
    else:
        rules = json.loads(backend.to_str())
        for key in ("truncation", "padding"):  # state of the last call
            rules.pop(key, None)
    text = json.dumps(rules, sort_keys=True)  # as one string, since a vocabulary has many entries
    special = getattr(tokenizer, "special_tokens_map", None)
    limit = getattr(tokenizer, "model_max_length", None)
    return digest([type(tokenizer).__qualname__, text, special, limit])


def _processor_digest(processor: Any) -> str | None:
    if processor is None:
        return None
    settings = processor.to_dict() if hasattr(processor, "to_dict") else repr(processor)
    return digest([type(processor).__qualname__, json.dumps(settings, sort_keys=True, default=str)])


def _version(library: str) -> str | None:
    try:
        return version(library)
    except PackageNotFoundError:
        return None

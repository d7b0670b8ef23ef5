"""Loads a model with its tokenizer: an embedded one by name, a folder, or a hub id."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from whence.errors import FileError, ModelError, nearest
from whence.explain import Explainer
from whence.models.embedded import embedded, verified


def load(source: str | Path, *, trust_remote_code: bool = False, **options: Any) -> Explainer:
    """An explainer for an embedded model (`"sentiment"`), a folder, or a hub id.

    The class is the one that the model's config names; weights are read from safetensors.
    Further options go to `from_pretrained` (`dtype=`, `attn_implementation=`, …).
    """
    import transformers
    from transformers import AutoConfig, AutoTokenizer

    box = embedded()
    if str(source) in box:
        source = verified(box[str(source)])
        options.setdefault("dtype", "float32")
    path = Path(source)
    local = path.is_dir()
    if not local and (path.exists() or str(source).startswith((".", "/", "~"))):
        raise FileError(f"{source} is no folder with a model (config.json, *.safetensors).")
    try:
        config = AutoConfig.from_pretrained(source, trust_remote_code=trust_remote_code)
        names = list(getattr(config, "architectures", None) or ())
        kind = getattr(transformers, names[0], None) if names else None
        kind = kind or transformers.AutoModelForSequenceClassification
        model = kind.from_pretrained(
            source, use_safetensors=True, trust_remote_code=trust_remote_code, **options
        )
    except Exception as error:
        hint = "" if local else f" It is no embedded model either; {nearest(str(source), box)}."
        raise ModelError(
            f"cannot load {'the model in ' if local else ''}{source}: {_first_line(error)}{hint}"
        ) from error
    try:
        tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=trust_remote_code)
    except (OSError, ValueError, KeyError):
        tokenizer = None  # a model without one takes token ids
    return Explainer(model.eval(), tokenizer)


def _first_line(error: Exception) -> str:
    return next((line for line in str(error).splitlines() if line.strip()), repr(error))

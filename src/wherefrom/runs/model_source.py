"""Which model explains: something to load in every process, or a model that is handed over."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wherefrom.errors import ModelError
from wherefrom.storage.fingerprint import changes, explainer_fingerprint

if TYPE_CHECKING:
    from wherefrom.explainer import Explainer


@dataclass(frozen=True)
class ModelSource:
    """An embedded name, a folder or a hub id with options of `load`; or an explainer itself."""

    source: str | Path | Explainer
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def only_named(self) -> bool:
        """Whether this process knows no more than the model's name: it has not imported torch.

        Once it has, methods and readers of the user's own may be there, which workers have not.
        """
        return isinstance(self.source, (str, Path)) and "torch" not in sys.modules

    def explainer(self) -> Explainer:
        """The explainer, loaded once in a process."""
        if isinstance(self.source, (str, Path)):
            return _loaded(str(self.source), tuple(sorted(self.options.items())))
        return self.source

    def verified(self, fingerprint: Mapping[str, Any], on_gpu: bool) -> Explainer:
        """The explainer, if weights, tokenizer and versions are those of the process that asks."""
        explainer = self.explainer()
        differences = changes(fingerprint, explainer_fingerprint(explainer))
        if differences:
            raise ModelError(
                f"a worker has another model than the process that started it "
                f"({'; '.join(differences)}). Give all machines the same files and versions."
            )
        if on_gpu:
            explainer.runner.model.to("cuda")
        return explainer


@cache
def _loaded(source: str, options: tuple[tuple[str, Any], ...]) -> Explainer:
    from wherefrom.loading import load  # with torch, which starting a run does not wait for

    return load(source, **dict(options))

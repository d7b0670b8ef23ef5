"""Which model explains: something to load in every process, or a model that is handed over."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from wherefrom.errors import ModelError
from wherefrom.explain import Explainer
from wherefrom.loading import load
from wherefrom.storage.fingerprint import changes, explainer_fingerprint


@dataclass(frozen=True)
class ModelSource:
    """An embedded name, a folder or a hub id with options of `load`; or an explainer itself."""

    source: str | Path | Explainer
    options: Mapping[str, Any] = field(default_factory=dict)

    def explainer(self) -> Explainer:
        """The explainer, loaded once in a process."""
        if isinstance(self.source, Explainer):
            return self.source
        return _loaded(str(self.source), tuple(sorted(self.options.items())))

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
            explainer.subject.model.to("cuda")
        return explainer


@cache
def _loaded(source: str, options: tuple[tuple[str, Any], ...]) -> Explainer:
    return load(source, **dict(options))

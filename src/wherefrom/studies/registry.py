"""Every study by its name."""

from __future__ import annotations

from collections.abc import Sequence

from wherefrom.errors import MethodError, nearest
from wherefrom.evaluation.metrics import METRICS, Metric, metric
from wherefrom.studies.attention_erasure import AttentionErasure
from wherefrom.studies.base import Study
from wherefrom.studies.layer_profile import Layers

STUDIES: dict[str, Study] = {each.name: each for each in (AttentionErasure(), Layers())}


def asked_for(names: Sequence[str | Metric | Study]) -> tuple[list[Metric], list[Study]]:
    """The metrics and the studies among what was asked for."""
    metrics: list[Metric] = []
    studies: list[Study] = []
    for name in dict.fromkeys(names):
        if isinstance(name, Study):
            studies.append(name)
        elif name in STUDIES:
            studies.append(STUDIES[str(name)])
        elif isinstance(name, Metric) or name in METRICS:
            metrics.append(metric(name))
        else:
            known = nearest(name, [*METRICS, *STUDIES])
            raise MethodError(f'there is no metric or study "{name}"; {known}')
    if not metrics and not studies:
        raise MethodError(f"no metric was asked for. There are: {', '.join([*METRICS, *STUDIES])}")
    return metrics, studies

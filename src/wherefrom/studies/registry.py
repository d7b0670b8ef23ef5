"""Every study by its name."""

from __future__ import annotations

from wherefrom.studies.attention_erasure import AttentionErasure
from wherefrom.studies.base import Study
from wherefrom.studies.layer_profile import LayerProfile

STUDIES: dict[str, Study] = {study.name: study for study in (AttentionErasure(), LayerProfile())}

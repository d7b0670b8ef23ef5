"""What is used where a caller says nothing."""

from __future__ import annotations

from typing import Any, Literal

Of = Literal["contrast", "logit", "logprob"]
"""What of a token is explained: its logit less the runner-up's, its logit, its log-probability."""

DECODER_SETTINGS: dict[str, dict[str, Any]] = {"lrp": {"gate": "shared", "root": "mean"}}
"""Settings of methods on language models, by name of the method; settings of the caller win.

Gradient × (input − mean embedding) with gates shared leaves a small part of the relevance on the
first token, which gets most of it without a root.
"""
LARGEST_GAIN = 10.0
"""A token hands relevance on if Σ |its row| is at most so many times its total: a row whose terms
cancel would hand on many times what it has got, once for and once against."""

"""What is used where a caller says nothing."""

from __future__ import annotations

from typing import Literal

Of = Literal["contrast", "logit", "logprob"]
"""What of a token is explained: its logit less the runner-up's, its logit, its log-probability."""

LARGEST_GAIN = 10.0
"""A token hands relevance on if Σ |its row| is at most so many times its total: a row whose terms
cancel would hand on many times what it has got, once for and once against."""

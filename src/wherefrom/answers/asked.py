"""What is explained, whether the model is there or not."""

from __future__ import annotations

from typing import Literal

from wherefrom.answers.tokens import AnswerTokens, PromptTokens
from wherefrom.methods import Method

Of = Literal["contrast", "logit", "logprob"]
"""What of a token is explained: its logit less the runner-up's, its logit, its log-probability."""


class Asked:
    """A prompt with its answer, and what is explained of it by which method."""

    method: Method
    prompt: PromptTokens
    answer: AnswerTokens
    of: Of

    @property
    def start(self) -> int:
        """The number of units before the answer."""
        return self.prompt.start

    @property
    def place(self) -> int:
        """The place of the logits that give the answer's first token."""
        return self.prompt.place

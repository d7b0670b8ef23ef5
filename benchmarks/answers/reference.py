"""What the model itself says: whether it gives an answer, and what it makes of fewer units."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.answers.cases import Case


@dataclass(frozen=True, eq=False)
class Reference:
    """The model itself: whether it gives an answer, and what it makes of fewer units."""

    model: Any
    tokenizer: Any

    def ids(self, text: str) -> list[int]:
        """The tokens of a text, without special ones added."""
        ids: list[int] = self.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        return ids

    def judged(self, case: Case, without: Sequence[int] = ()) -> tuple[bool, float]:
        """Whether the parts that must be the model's are; and the answer's log-probability."""
        import torch

        prompt, answer = self.ids(case.prompt(without)), self.ids(case.answer)
        with torch.no_grad():
            output = self.model(
                torch.tensor([prompt + answer]), use_cache=False, logits_to_keep=len(answer) + 1
            )
        logits = output.logits[0, :-1].double()  # (answer tokens, vocabulary)
        best = logits.argmax(-1).tolist()
        right = all(best[i] == answer[i] for i in self.own_tokens(case, answer))
        logs = logits.log_softmax(-1)
        return right, float(sum(logs[i, number] for i, number in enumerate(answer)))

    def own_tokens(self, case: Case, answer: list[int]) -> list[int]:
        """The tokens of the answer that must be the model's; each part where it first occurs."""
        ends, text = [], ""
        for count in range(1, len(answer) + 1):
            text = self.tokenizer.decode(answer[:count])
            ends.append(len(text))
        starts = [0, *ends[:-1]]
        tokens = []
        for part in case.own:
            start = text.index(part)
            end = start + len(part)
            tokens += [i for i in range(len(answer)) if ends[i] > start and starts[i] < end]
        return tokens

    def counts(self, case: Case) -> bool:
        """Whether the model is right, and no longer without any of the sources."""
        return self.judged(case)[0] and not any(
            self.judged(case, (source,))[0] for source in case.sources
        )

    def membership(self, case: Case) -> list[int]:
        """The unit of each token of the prompt, −1 for the question and the first token."""
        output = self.tokenizer(
            case.prompt(), add_special_tokens=False, return_offsets_mapping=True, verbose=False
        )
        text, spans, units = case.prompt(), case.spans(), []
        for start, end in output["offset_mapping"]:
            inked = start + len(text[start:end]) - len(text[start:end].lstrip())
            units.append(next((i for i, (a, b) in enumerate(spans) if a <= inked < b), -1))
        units[0] = -1  # it gets attention that has nowhere to go, whatever it says
        return units

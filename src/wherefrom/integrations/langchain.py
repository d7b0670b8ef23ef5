"""Citations in LangChain: a step that says which documents each sentence of an answer is from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from wherefrom.answers.prompt import Passage, Prompt
from wherefrom.answers.sentence_records import answer_record
from wherefrom.errors import InputError, MissingExtra
from wherefrom.explainer import Explainer

try:
    from langchain_core.runnables import Runnable, RunnableLambda
except ImportError as error:
    raise MissingExtra("langchain_core", "langchain", "wherefrom.integrations.langchain") from error


def citing(
    explainer: Explainer,
    question: str = "input",
    documents: str = "context",
    answer: str = "answer",
    **options: Any,
) -> Runnable[Mapping[str, Any], dict[str, Any]]:
    """A step after a retrieval chain, which adds `citations` to its output.

    `question`, `documents` and `answer` are keys of the output. Options go to `Explainer.answer`.
    """

    def cite(output: Mapping[str, Any]) -> dict[str, Any]:
        missing = [key for key in (question, documents, answer) if key not in output]
        if missing:
            raise InputError(
                f"the chain's output has no {missing[0]!r}; it has: {', '.join(output)}.",
                "Name its keys: citing(explainer, question=…, documents=…, answer=…).",
                command="",
            )
        context = output[documents]
        passages = [Passage(d.page_content, str(d.metadata.get("title", ""))) for d in context]
        prompt = Prompt(output[question], passages)
        names = [document.id or document.metadata.get("source") for document in context]
        ids = {f"passage {number}": str(name) for number, name in enumerate(names, 1) if name}
        record = answer_record(explainer.answer(prompt, output[answer], **options), ids)
        return {**output, "citations": record}

    return RunnableLambda(cite, name="citing")

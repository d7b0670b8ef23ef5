"""Citations in LlamaIndex: a query engine that says which nodes each sentence is from."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from wherefrom.answers.prompt import Passage, Prompt
from wherefrom.answers.sentence_records import answer_record
from wherefrom.errors import InputError, MissingExtra
from wherefrom.explainer import Explainer

try:
    from llama_index.core.base.base_query_engine import BaseQueryEngine
    from llama_index.core.base.response.schema import Response
    from llama_index.core.schema import QueryBundle
except ImportError as error:
    raise MissingExtra(
        "llama_index", "llama-index", "wherefrom.integrations.llama_index"
    ) from error


class CitingQueryEngine(BaseQueryEngine):  # type: ignore[misc]
    """Adds `citations` to the metadata of another query engine's responses.

    Options go to `Explainer.answer`.
    """

    def __init__(self, engine: BaseQueryEngine, explainer: Explainer, **options: Any) -> None:
        super().__init__(engine.callback_manager)
        self._engine, self._explainer, self._options = engine, explainer, options

    def _get_prompt_modules(self) -> dict[str, Any]:
        return {"engine": self._engine}

    def _query(self, query_bundle: QueryBundle) -> Response:
        return self._cited(query_bundle, self._engine.query(query_bundle))

    async def _aquery(self, query_bundle: QueryBundle) -> Response:
        response = await self._engine.aquery(query_bundle)
        return await asyncio.to_thread(self._cited, query_bundle, response)

    def _cited(self, query: QueryBundle, response: Any) -> Response:
        if not isinstance(response, Response):
            raise InputError(
                f"a {type(response).__name__} cannot be cited: the query engine must return its "
                "answer as one text, not streamed."
            )
        nodes = [found.node for found in response.source_nodes]
        if not nodes or not response.response:
            return response  # engines answer "Empty Response" if they retrieve nothing
        passages = [Passage(n.get_content(), str(n.metadata.get("title", ""))) for n in nodes]
        ids = {f"passage {number}": node.node_id for number, node in enumerate(nodes, 1)}
        prompt = Prompt(query.query_str, passages)
        answer = self._explainer.answer(prompt, response.response, **self._options)
        metadata = {**(response.metadata or {}), "citations": answer_record(answer, ids)}
        return replace(response, metadata=metadata)

"""Citations within LangChain and LlamaIndex, with the real packages and a random model."""

import asyncio
import sys

import pytest

from benchmarks.tiny import model as tiny
from wherefrom import Explainer, Passage, Prompt
from wherefrom.answers.sentence_records import sentence_records
from wherefrom.errors import InputError, MissingExtra

REASON = "*** {} IS NOT TESTED: make test-web installs it ***"
# warnings of these packages about their own dependencies
pytestmark = [pytest.mark.api, pytest.mark.filterwarnings("ignore::DeprecationWarning")]
QUESTION, ANSWER = "who is it?", " it is Paris. It is b."
TEXTS = ["the movie is lovely.", "Paris is it."]


@pytest.fixture(scope="module")
def talker(bytepairs):
    """A random model that reads the bytes of a text."""
    model = tiny("llama", "write", vocab_size=len(bytepairs), max_position_embeddings=512)
    return Explainer(model, bytepairs)


def check(citations, talker, ids, title=""):
    """The record is the library's own for the same question, passages and answer."""
    prompt = Prompt(QUESTION, [Passage(TEXTS[0], title), TEXTS[1]])
    answer = talker.answer(prompt, ANSWER)
    assert citations["text"] == ANSWER
    assert citations["sentences"] == sentence_records(answer, ids)
    assert len(citations["sentences"]) == 2
    assert "improbable" in citations["warnings"][0]


class TestLangChain:
    @pytest.fixture(autouse=True)
    def installed(self):
        pytest.importorskip("langchain_core", reason=REASON.format("LANGCHAIN"))

    def chain(self, **names):
        """A chain as `create_retrieval_chain` makes it, with a model that gives one answer."""
        from langchain_core.documents import Document
        from langchain_core.language_models import FakeListChatModel
        from langchain_core.output_parsers import StrOutputParser
        from langchain_core.prompts import ChatPromptTemplate
        from langchain_core.runnables import RunnableLambda, RunnablePassthrough

        documents = [
            Document(TEXTS[0], metadata={"title": "Films", "source": "films.txt"}),
            Document(TEXTS[1], id="p1"),
        ]
        prompt = ChatPromptTemplate.from_template("{context} {input}")
        model = prompt | FakeListChatModel(responses=[ANSWER]) | StrOutputParser()
        retrieved = RunnablePassthrough.assign(context=RunnableLambda(lambda _: documents))
        return retrieved.assign(answer=model)

    def test_a_chain_gets_citations(self, talker):
        from wherefrom.integrations.langchain import citing

        chain = self.chain() | citing(talker)
        ids = {"passage 1": "films.txt", "passage 2": "p1"}
        output = chain.invoke({"input": QUESTION})
        assert output["answer"] == ANSWER
        assert [document.page_content for document in output["context"]] == TEXTS
        check(output["citations"], talker, ids, "Films")
        check(asyncio.run(chain.ainvoke({"input": QUESTION}))["citations"], talker, ids, "Films")
        *_, last = chain.stream({"input": QUESTION})
        check(last["citations"], talker, ids, "Films")

    def test_a_key_that_is_missing_is_named(self, talker):
        from wherefrom.integrations.langchain import citing

        with pytest.raises(InputError, match=r"has no 'query'; it has: input, context, answer\."):
            (self.chain() | citing(talker, question="query")).invoke({"input": QUESTION})


class TestLlamaIndex:
    @pytest.fixture(autouse=True)
    def installed(self):
        pytest.importorskip("llama_index.core", reason=REASON.format("LLAMAINDEX"))

    def engine(self, streaming=False, texts=TEXTS):
        """A query engine with a model that gives one answer."""
        from llama_index.core.llms import CompletionResponse as Completion
        from llama_index.core.llms import CustomLLM, LLMMetadata
        from llama_index.core.query_engine import RetrieverQueryEngine
        from llama_index.core.response_synthesizers import get_response_synthesizer
        from llama_index.core.retrievers import BaseRetriever
        from llama_index.core.schema import NodeWithScore, TextNode

        class One(CustomLLM):
            @property
            def metadata(self):
                return LLMMetadata()

            def complete(self, prompt, formatted=False, **options):
                return Completion(text=ANSWER)

            def stream_complete(self, prompt, formatted=False, **options):
                yield Completion(text=ANSWER, delta=ANSWER)

        class All(BaseRetriever):
            def _retrieve(self, query_bundle):
                nodes = [TextNode(text=text, id_=f"n{n}") for n, text in enumerate(texts)]
                nodes[:1] = [
                    TextNode(text=t.text, id_="n0", metadata={"title": "Films"}) for t in nodes[:1]
                ]
                return [NodeWithScore(node=node, score=1.0) for node in nodes]

        synthesizer = get_response_synthesizer(llm=One(), streaming=streaming)
        return RetrieverQueryEngine(All(), synthesizer)

    def test_a_query_engine_gets_citations(self, talker):
        from wherefrom.integrations.llama_index import CitingQueryEngine

        engine = CitingQueryEngine(self.engine(), talker)
        ids = {"passage 1": "n0", "passage 2": "n1"}
        for response in (engine.query(QUESTION), asyncio.run(engine.aquery(QUESTION))):
            assert str(response) == ANSWER
            assert [node.node.node_id for node in response.source_nodes] == ["n0", "n1"]
            assert response.metadata["n0"] == {"title": "Films"}  # the engine's own
            check(response.metadata["citations"], talker, ids, "Films")
        assert any("text_qa_template" in name for name in engine.get_prompts())

    def test_a_streamed_response_is_refused_and_an_empty_one_is_passed_on(self, talker):
        from wherefrom.integrations.llama_index import CitingQueryEngine

        with pytest.raises(InputError, match="StreamingResponse cannot be cited"):
            CitingQueryEngine(self.engine(streaming=True), talker).query(QUESTION)
        empty = CitingQueryEngine(self.engine(texts=[]), talker).query(QUESTION)
        assert "citations" not in (empty.metadata or {})


@pytest.mark.parametrize(
    ("library", "module", "extra"),
    [("langchain_core", "langchain", "langchain"), ("llama_index", "llama_index", "llama-index")],
)
def test_without_the_library_the_error_names_the_install_command(
    monkeypatch, library, module, extra
):
    name = f"wherefrom.integrations.{module}"
    for loaded in [m for m in sys.modules if m == name or m.split(".")[0] == library]:
        monkeypatch.delitem(sys.modules, loaded)
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(MissingExtra, match=rf"wherefrom\[{extra}\]"):
        __import__(name)

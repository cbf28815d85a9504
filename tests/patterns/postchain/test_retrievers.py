"""A chain finds documents with the retriever it is given: by meaning, of a package, or as the configuration says."""

from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import Embedder
from pydantic_ai.exceptions import ModelHTTPError
from tests.patterns.chains import Witness, chain_on, said_in
from tests.retrieval.test_vectors import Meanings, filled

from antiphon.errors import ConfigError
from antiphon.ledger import Ledger, open_ledger
from antiphon.messages import OptionResultPayload, thaw
from antiphon.patterns.postchain import ChainConfig, PostChain
from antiphon.protocol import AgentConfig
from antiphon.retrieval import AddedDocument, KnowledgeBase, Passage, PassageFilter, Passages

pytest.importorskip("apsw")

QUESTION = "Which dog is loud?"


async def _found(chain: PostChain) -> list[str]:
    """Return the titles of the sources that the experience phase has found."""
    result = await chain.run(QUESTION)
    for message in await said_in(chain.ledger, result.thread_id):
        match message.payload:
            case OptionResultPayload(option_name="retrieve"):
                items: Any = thaw(message.payload.result)
                return [item["title"] for item in items]
            case _:
                pass
    raise AssertionError("no retrieval is recorded")


@pytest.mark.slow
async def test_a_chain_finds_a_paraphrase_with_an_embedder(tmp_path: Path) -> None:
    async with open_ledger(f"sqlite:///{tmp_path}/ledger.db") as ledger:
        base = await filled(ledger, Meanings())
        async with chain_on(ledger) as plain:
            by_words = await _found(plain)
        async with chain_on(ledger, retriever=base) as meaning:
            by_meaning = await _found(meaning)
    assert "dog.md" not in by_words  # which says "pet"
    assert "dog.md" in by_meaning


@pytest.mark.slow
async def test_the_configuration_names_the_embedder(monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_ledger("memory:") as ledger:
        await filled(ledger, Meanings())
        named = list[str]()

        def embedder(name: str, **more: Any) -> Embedder:
            named.append(name)
            return Embedder(Meanings())

        monkeypatch.setattr("antiphon.patterns.postchain._retrieval.Embedder", embedder)
        async with chain_on(ledger, config=ChainConfig(backoff=0, embedder="openai:small")) as chain:
            assert "dog.md" in await _found(chain)
    assert named == ["openai:small"]


class Elsewhere:
    """A retriever of a package: it has the same passages, whatever the question."""

    def __init__(self, ledger: Ledger) -> None:
        self.asked: list[tuple[str, int]] = []

    async def add(self, source: str, text: str, **more: Any) -> AddedDocument:
        raise NotImplementedError

    async def search(self, query: str, limit: int = 5, filter: PassageFilter | None = None) -> Passages:
        self.asked.append((query, limit))
        far = Passage(id="far-1", source="far.md", text="Wheels, and fuel for a very long way, at any time of the day.")
        return Passages((far, Passage(id="next-1", source="next.md", text="A short way.")))

    async def remove(self, source: str) -> bool:
        raise NotImplementedError


@pytest.mark.slow
async def test_the_sources_are_those_of_a_given_retriever_in_the_phase_and_in_the_tool() -> None:
    async with open_ledger("memory:") as ledger:
        elsewhere = Elsewhere(ledger)
        async with chain_on(ledger, retriever=elsewhere) as chain:
            assert await _found(chain) == ["far.md", "next.md"]  # in its order, though no word of the question is there
            (tool,) = chain._chain.cast.tools.plain(("knowledge_base",))
            assert [each["source"] for each in await tool.function("fuel")] == ["far.md", "next.md"]  # type: ignore[misc,operator]
    assert (QUESTION, 5) in elsewhere.asked
    assert elsewhere.asked[-1] == ("fuel", 5)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"retriever": "nowhere"}, "retriever = 'nowhere': no retriever is called 'nowhere'; there are knowledge"),
        ({"embedder": "nobody:small"}, "embedder = 'nobody:small': "),
        ({"embedder": "openai:small", "retriever": "knowledge"}, "remove one"),
    ],
)
async def test_a_retriever_or_embedder_that_cannot_be_had_is_explained(settings: dict[str, Any], words: str) -> None:
    async with open_ledger("memory:") as ledger:
        with pytest.raises(ConfigError) as caught:
            PostChain(ledger, ChainConfig(**settings))
    assert words in str(caught.value)


async def test_a_named_retriever_is_opened() -> None:
    async with open_ledger("memory:") as ledger:
        chain = PostChain(ledger, ChainConfig(retriever="knowledge"))
        assert isinstance(chain._chain.retriever, KnowledgeBase)


class Failing(Elsewhere):
    """A retriever whose service fails with some errors, and then answers."""

    def __init__(self, *errors: Exception) -> None:
        super().__init__(None)  # type: ignore[arg-type]
        self.errors = list(errors)

    async def search(self, query: str, limit: int = 5, filter: PassageFilter | None = None) -> Passages:
        found = await super().search(query, limit, filter)
        if self.errors:
            raise self.errors.pop(0)
        return found


NO_TOOLS = ChainConfig(backoff=0, phases={"action": AgentConfig(tools=())})
BUSY = ModelHTTPError(503, "small")
REFUSED = ModelHTTPError(401, "small", {"error": "no such key"})


async def test_an_embedder_that_is_busy_is_asked_again() -> None:
    retriever = Failing(BUSY, ConnectionError("cut"))
    async with chain_on(retriever=retriever, config=NO_TOOLS) as chain:
        assert "far.md" in await _found(chain)
    assert len(retriever.asked) == 3


@pytest.mark.parametrize("errors", [[BUSY] * 3, [REFUSED]])
async def test_a_thread_whose_embedder_fails_stops_and_is_resumed(
    errors: list[Exception], caplog: pytest.LogCaptureFixture
) -> None:
    """It does not fail: the earlier phases are paid, and a person can renew the key."""
    retriever = Failing(*errors)
    async with chain_on(retriever=retriever, config=NO_TOOLS) as chain:
        stopped = await chain.run(QUESTION)
        assert (stopped.status, stopped.error_code) == ("stopped", "AGENT_ERROR")
        assert "the documents cannot be searched: ModelHTTPError: status_code: " in str(stopped.error_message)
        await chain.resume(stopped.thread_id)
        resumed = await chain.wait(stopped.thread_id)
    assert resumed.status == "completed"
    assert len(retriever.asked) == len(errors) + 1
    assert [each.getMessage() for each in caplog.records if each.levelname in ("WARNING", "ERROR")] == []


async def test_another_process_resumes_a_thread_whose_embedder_failed() -> None:
    witness = Witness()
    async with open_ledger("memory:") as ledger:
        async with chain_on(ledger, witness, NO_TOOLS, retriever=Failing(REFUSED)) as chain:
            thread_id = (await chain.run(QUESTION)).thread_id
        async with chain_on(ledger, witness, NO_TOOLS, retriever=Failing()) as chain:
            assert (await chain.wait(thread_id)).status == "stopped"  # opening a chain does not resume it
            await chain.resume(thread_id)
            assert (await chain.wait(thread_id)).status == "completed"
    assert len(witness.asked) == len(set(witness.asked)), witness.asked


async def test_an_error_of_the_retriever_itself_fails_the_phase() -> None:
    retriever = Failing(RuntimeError("a fault in its code"))
    async with chain_on(retriever=retriever, config=NO_TOOLS) as chain:
        failed = await chain.run(QUESTION)
    assert (failed.status, len(retriever.asked)) == ("failed", 1)

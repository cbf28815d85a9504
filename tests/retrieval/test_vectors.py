"""With an embedder, passages are found by meaning too; each is embedded once, and vectors of two embedders are never mixed."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import apsw
import pytest
from pydantic_ai import Embedder
from pydantic_ai.embeddings import EmbeddingModel, EmbeddingResult

from antiphon.errors import RetrievalError
from antiphon.ledger import Ledger, open_ledger
from antiphon.ledger.sqlite._sql import Connection
from antiphon.retrieval import KnowledgeBase, PassageFilter

Opened = Callable[[], Any]
MEANINGS = {"car": 0, "automobile": 0, "vehicle": 0, "tea": 1, "drink": 1, "beverage": 1, "dog": 2, "pet": 2}


class Meanings(EmbeddingModel):
    """An embedder that knows a few synonyms: a dimension for each meaning."""

    def __init__(self, dimension: int = 4, name: str = "meanings") -> None:
        super().__init__()
        self.dimension, self.name = dimension, name
        self.embedded: list[str] = []

    @property
    def model_name(self) -> str:
        return self.name

    @property
    def system(self) -> str:
        return "tests"

    async def embed(self, inputs: str | Sequence[str], *, input_type: Any, settings: Any = None) -> EmbeddingResult:
        texts, _ = self.prepare_embed(inputs, settings)
        if input_type == "document":
            self.embedded += texts
        return EmbeddingResult(
            [self._vector(text) for text in texts],
            inputs=texts,
            input_type=input_type,
            model_name=self.name,
            provider_name=self.system,
        )

    def _vector(self, text: str) -> list[float]:
        words = text.lower().replace(".", "").replace("?", "").split()
        vector = [0.0] * (self.dimension - 1) + [0.1]
        for word in words:
            if word in MEANINGS:
                vector[MEANINGS[word]] += 1.0
        return vector


@pytest.fixture(params=["memory", "sqlite"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Opened:
    url = "memory:" if request.param == "memory" else f"sqlite:///{tmp_path}/ledger.db"

    @asynccontextmanager
    async def open_one() -> AsyncIterator[Ledger]:
        async with open_ledger(url) as ledger:
            yield ledger

    return open_one


TEXTS = {
    "car.md": "An automobile has four wheels.",
    "tea.md": "A beverage of leaves.",
    "dog.md": "A pet barks at wheels.",
}


async def filled(ledger: Ledger, model: Meanings) -> KnowledgeBase:
    base = KnowledgeBase(ledger, embedder=Embedder(model))
    for source, text in TEXTS.items():
        await base.add(source, text)
    return base


async def test_a_paraphrase_is_found_and_words_count_too(opened: Opened) -> None:
    async with opened() as ledger:
        base = await filled(ledger, Meanings())
        meant = await base.search("vehicle")
        both = await base.search("Which drink has leaves?")
        limited = await base.search("vehicle", filter=PassageFilter(source="tea*"))
        plain = await KnowledgeBase(ledger).search("vehicle")

    assert (meant[0].source, both[0].source, plain) == ("car.md", "tea.md", ())
    assert both[0].score == round(2 / 61, 4)  # the first of both rankings
    assert {each.source for each in limited} == {"tea.md"}


async def test_each_passage_is_embedded_once_and_a_removed_one_is_not_found(opened: Opened) -> None:
    model = Meanings()
    async with opened() as ledger:
        base = await filled(ledger, model)
        await base.search("vehicle")
        await base.search("drink")
        await base.add("car.md", "A car has an engine.")
        await base.remove("tea.md")
        await base.refresh()
        found = await base.search("drink")
        assert (await ledger.verify()).is_whole
        await ledger.delete(f"knowledge/{(await base.search('engine'))[0].id.rsplit('-', 2)[0]}")
        assert [each.source for each in await base.search("vehicle")] == ["dog.md"]
        assert (await ledger.verify()).is_whole

    assert sorted(model.embedded) == sorted([*TEXTS.values(), "A car has an engine."])
    assert "tea.md" not in {each.source for each in found}


@pytest.mark.parametrize("other", [Meanings(dimension=6), Meanings(name="others")], ids=["dimension", "model"])
async def test_another_embedder_is_refused_until_the_vectors_are_dropped(opened: Opened, other: Meanings) -> None:
    async with opened() as ledger:
        await (await filled(ledger, Meanings())).search("vehicle")
        base = KnowledgeBase(ledger, embedder=Embedder(other))
        with pytest.raises(RetrievalError, match=r"are of tests:meanings \(4 dimensions\).*drop_vectors") as caught:
            await base.search("vehicle")
        assert caught.value.code == "OTHER_EMBEDDER"
        assert f"this embedder is tests:{other.name} ({other.dimension} dimensions)" in str(caught.value)
        assert len(await KnowledgeBase(ledger).search("wheels")) == 2  # words are found all the same
        await base.drop_vectors()
        assert (await base.search("vehicle"))[0].source == "car.md"
        assert (await ledger.verify()).is_whole


@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE term_vectors SET vector = zeroblob(16) WHERE position = 1",
        "UPDATE vector_spaces SET model = 'x'",
        "UPDATE vector_spaces SET dimension = 5",
        "INSERT INTO term_vectors SELECT 99, vector, checksum FROM term_vectors WHERE position = 1",
        "DELETE FROM vector_spaces",
    ],
)
async def test_an_altered_vector_is_damage(tmp_path: Path, sql: str) -> None:
    path = tmp_path / "ledger.db"
    async with open_ledger(f"sqlite:///{path}") as ledger:
        await (await filled(ledger, Meanings())).search("vehicle")
    connection = Connection(str(path), apsw.SQLITE_OPEN_READWRITE)
    connection.run(sql)
    connection.close()
    async with open_ledger(f"sqlite:///{path}") as ledger:
        assert not (await ledger.verify()).is_whole

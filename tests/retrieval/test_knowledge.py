"""Documents are found by questions in seven languages, with headings and lines, until they are removed; on every ledger."""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.retrieval.texts import PROTOCOL, TEXTS

from antiphon.ledger import Ledger, open_ledger
from antiphon.retrieval import KnowledgeBase, PassageFilter, Retriever, open_retriever
from antiphon.retrieval import _retriever as module
from antiphon.retrieval._language import LANGUAGES, detect_language

Opened = Callable[[], Any]


@pytest.fixture(params=["memory", "sqlite"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Opened:
    url = "memory:" if request.param == "memory" else f"sqlite:///{tmp_path}/ledger.db"

    @asynccontextmanager
    async def open_one() -> AsyncIterator[Ledger]:
        async with open_ledger(url) as ledger:
            yield ledger

    return open_one


# ---------------------------------------------------------------- found


async def test_a_heading_counts_for_the_passage_below_it_and_is_told_with_its_lines(opened: Opened) -> None:
    """The sentence names no message: only the heading above it does."""
    async with opened() as ledger:
        base = KnowledgeBase(ledger)
        await base.add("protocol.md", PROTOCOL)
        (found, *_) = await base.search("Which message checks whether an actor is alive?")
        (named, *_) = await base.search("What is HEARTBEAT for?")

    assert found.heading == ("Message Protocol", "System Management Messages", "HEARTBEAT")
    assert found.lines == (13, 21)
    assert found.coverage == 1.0
    assert (named.id, found.source, found.version, len(found.digest)) == (found.id, "protocol.md", 1, 64)


async def test_a_heading_counts_for_passages_that_do_not_begin_with_it(opened: Opened) -> None:
    """Two sections say the same at their end; only the headings, far above, tell which one is meant."""
    filler = "\n\n".join("Nothing of interest is said in this long paragraph, and it goes on. " * 8 for _ in range(3))
    text = "\n\n".join(f"# {name}\n\n{filler}\n\nThe limit is {value}." for name, value in (("Uploads", 5), ("Downloads", 9)))
    async with opened() as ledger:
        base = KnowledgeBase(ledger)
        await base.add("limits.md", text)
        found = [(await base.search(f"What is the limit of {name}?"))[0] for name in ("an upload", "a download")]

    assert [(each.heading, each.text.startswith("#"), each.text[-2:]) for each in found] == [
        (("Uploads",), False, "5."),
        (("Downloads",), False, "9."),
    ]


@pytest.mark.parametrize("language", LANGUAGES)
async def test_another_form_of_a_word_finds_the_passage_in_each_language(opened: Opened, language: str) -> None:
    """Beside the same question's words in other languages, and in the plural, the past or another gender."""
    async with opened() as ledger:
        base = KnowledgeBase(ledger)
        for code, each in TEXTS.items():
            await base.add(f"{code}.md", each.text)
        (found, *_) = await base.search(TEXTS[language].question)

    assert detect_language(TEXTS[language].text) == language
    assert (found.source, found.language) == (f"{language}.md", language)
    assert TEXTS[language].answer in found.text


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        ("Is there a fee for visitors?", "Guests pay nothing."),
        ("Who mended the bicycle?", "My bike was repaired by Ann."),
        ("Wo steht das Fahrzeug?", "Der Wagen ist im Hof."),
        ("Que fait-on des ordures ?", "Les déchets sont brûlés."),
    ],
)
async def test_another_word_for_the_same_thing_finds_the_passage_behind_those_with_the_word_itself(
    opened: Opened, question: str, expected: str
) -> None:
    async with opened() as ledger:
        base = KnowledgeBase(ledger)
        await base.add("other.md", "Nothing of this matters. Rien de cela. Nichts davon.")
        await base.add("same.md", expected)
        (found, *_) = await base.search(question)
        await base.add("word.md", question)
        (better, worse, *_) = await base.search(question)

    assert (found.source, found.text) == ("same.md", expected)
    assert 0.0 < found.coverage < 1.0
    assert (better.source, worse.source) == ("word.md", "same.md")


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        ("thread actor", "ThreadActor keeps the order."),
        ("ThreadActor", "ThreadActor keeps the order."),
        ("request id", "The field request_id pairs them."),
        ("KÜCHE", "Die Küche ist offen."),
        ("kuche", "Die Küche ist offen."),
        ("東京", "私は東京に住んでいます"),
        ("हिन्दी", "यह हिन्दी है"),
        ("Strasse", "Die Straße ist lang."),
    ],
)
async def test_words_are_those_of_unicode_and_of_programs(opened: Opened, question: str, expected: str) -> None:
    texts = ["ThreadActor keeps the order.", "The field request_id pairs them.", "Die Küche ist offen."]
    texts += ["私は東京に住んでいます", "यह हिन्दी है", "Die Straße ist lang."]
    async with opened() as ledger:
        base = KnowledgeBase(ledger)
        for number, text in enumerate(texts):
            await base.add(f"{number}.txt", text)
        found = await base.search(question)

    assert found[0].text == expected


async def test_a_filter_says_which_documents_are_searched(opened: Opened) -> None:
    async with opened() as ledger:
        base = KnowledgeBase(ledger)
        await base.add("docs/tea.md", "The tea is green.")
        await base.add("notes/tea.md", "The tea is black.")
        await base.add("docs/tee.md", "Der Tee ist grün und die Tasse ist aus Ton: tea.")
        sources = [
            {each.source for each in await base.search("tea", filter=wanted)}
            for wanted in (None, PassageFilter(source="docs/*"), PassageFilter(language="de"))
        ]
        assert await base.search("tea", limit=0) == ()
        with pytest.raises(ValueError, match="0 passages or more, not -1"):
            await base.search("tea", limit=-1)

    assert sources == [
        {"docs/tea.md", "notes/tea.md", "docs/tee.md"},
        {"docs/tea.md", "docs/tee.md"},
        {"docs/tee.md"},
    ]


@pytest.mark.slow
async def test_a_question_of_a_megabyte_is_cut_and_the_result_says_so(opened: Opened) -> None:
    async with opened() as ledger:
        base = KnowledgeBase(ledger)
        await base.add("tea.md", "The tea is green.")
        asked = "How green is tea? " + " ".join(f"word{number}" for number in range(200_000))
        long, short = await base.search(asked), await base.search("How green is tea?")

    assert (long.is_cut, short.is_cut) == (True, False)
    assert [each.id for each in long] == [each.id for each in short]


# ---------------------------------------------------------------- replaced, removed


async def test_a_removed_document_is_not_found_and_its_bytes_go_when_it_is_erased(opened: Opened, tmp_path: Path) -> None:
    async with opened() as ledger:
        base = KnowledgeBase(ledger)
        await base.add("tea.md", "Oolong is steeped at 90 degrees.")
        await base.add("soup.md", "Soup is cooked at 95 degrees.")
        assert await base.remove("tea.md")
        removed = await base.search("Oolong degrees")
        thread = f"knowledge/{(await base.search('soup'))[0].id.rsplit('-', 2)[0]}"
        assert not await base.remove("tea.md")
        assert not await base.remove("other.md")
        assert await base.rebuild() == 1  # the message that says so is no passage
        again = await base.add("tea.md", "Oolong is steeped at 90 degrees.")
        back = await base.search("Oolong")
        assert await base.remove("tea.md", erase=True)
        assert not await base.remove("tea.md", erase=True)
        assert [each.source for each in await base.search("degrees")] == ["soup.md"]
        assert (await ledger.verify()).is_whole
        assert await ledger.search("Oolong") == ()
        assert (await ledger.thread(thread)) is not None

    assert [each.source for each in removed] == ["soup.md"]
    assert (again.version, again.is_new, [each.version for each in back]) == (3, True, [3])
    stored = b"".join(path.read_bytes() for path in tmp_path.glob("ledger.db*"))
    assert (b"Oolong" in stored, b"oolong" in stored) == (False, False)


async def test_a_citation_can_be_shown_with_the_lines_around_it(opened: Opened) -> None:
    async with opened() as ledger:
        base = KnowledgeBase(ledger)
        await base.add("protocol.md", PROTOCOL)
        (found, *_) = await base.search("alive")
        around = await base.around(found, lines=3)
        again = await base.passage(found.id)
        missing = await base.passage("kb-0-1-1")

    assert again is not None
    assert (again.text, missing) == (found.text, None)
    lines = PROTOCOL.split("\n")
    assert [number for number, _ in around] == [10, 11, *range(13, 22), 23, 24]  # those between passages are empty
    assert all(lines[number - 1] == text for number, text in around)


# ---------------------------------------------------------------- the index


async def test_another_analysis_builds_the_index_again(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened() as ledger:
        await KnowledgeBase(ledger).add("tea.md", "The tea is green.")
        assert len(await KnowledgeBase(ledger).search("tea")) == 1
        monkeypatch.setattr(module, "analysis_version", lambda: "other")
        monkeypatch.setattr(module, "terms_in", lambda text, language: ["tea"] if "green" in text else [])
        assert len(await KnowledgeBase(ledger).search("tea")) == 1
        assert await KnowledgeBase(ledger).search("green") == ()
        assert await KnowledgeBase(ledger).rebuild() == 1
        assert (await ledger.verify()).is_whole


@pytest.mark.slow
async def test_two_ledgers_on_one_file_add_and_search_at_once(tmp_path: Path) -> None:
    """As two processes do: each finds what the other has added, and of one source every version has its number."""
    url = f"sqlite:///{tmp_path}/ledger.db"
    async with open_ledger(url) as one, open_ledger(url) as other:
        bases = [KnowledgeBase(one), KnowledgeBase(other)]

        async def work(base: KnowledgeBase, name: str) -> None:
            for number in range(8):
                await base.add(f"{name}{number}.md", f"{name} writes about subject{number}.")
                await base.add("shared.md", f"{name} was here {number}.")
                assert await base.search(f"subject{number}")

        await asyncio.gather(work(bases[0], "ada"), work(bases[1], "bob"))
        for base in bases:
            assert {each.source for each in await base.search("subject3")} == {"ada3.md", "bob3.md"}
            (shared,) = await base.search("was here", filter=PassageFilter(source="shared.md"))
            assert shared.version == 16
        assert (await one.verify()).is_whole


def test_the_name_of_a_base_has_no_slash() -> None:
    with pytest.raises(ValueError, match="without a slash, not 'a/b'"):
        KnowledgeBase(None, thread_id="a/b")  # type: ignore[arg-type]


# ---------------------------------------------------------------- third parties

ELSEWHERE = """
from antiphon.retrieval import Passages

class Elsewhere:
    def __init__(self, ledger):
        self.ledger = ledger
    async def search(self, query, limit=5, filter=None):
        return Passages()
"""


def test_a_package_offers_a_retriever_by_an_entry_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elsewhere.py").write_text(ELSEWHERE)
    folder = tmp_path / "elsewhere-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: elsewhere\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text("[antiphon.retrievers]\nelsewhere = elsewhere:Elsewhere\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    ledger: Any = object()
    with pytest.raises(ValueError, match="no retriever is called 'other'; there are knowledge, elsewhere"):
        open_retriever("other", ledger)
    found: Retriever = open_retriever("elsewhere", ledger)

    assert type(found).__name__ == "Elsewhere"
    assert isinstance(open_retriever("knowledge", ledger), KnowledgeBase)
    sys.modules.pop("elsewhere", None)

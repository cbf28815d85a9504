"""The questions, with their gold passages, and the documents that they are asked about."""

from __future__ import annotations

import tarfile
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["SETS", "Gold", "Question", "plain", "read_documents", "read_questions"]

HERE = Path(__file__).parent
SETS = {"questions": "documents", "held_out": "held_out", "second": "second", "third": "third", "fourth": "fourth"}
"""The files with questions, each with the folder of its documents."""


@dataclass(frozen=True, slots=True)
class Gold:
    """Where an answer is."""

    document: str
    heading: str
    """The innermost heading above the sentence; empty in a text without headings."""
    sentence: str
    """A sentence, the row of a table or a line of code, word for word; line breaks count as spaces."""


@dataclass(frozen=True, slots=True)
class Question:
    """A question, and every place that answers it."""

    id: str
    language: str
    part: str
    """`tune` or `check`: two halves of the first set, both in view when the scoring was fitted; `held-out`, or `second`;
    `third-tune` and `third-check`: two halves of the third set, of which only the first was in view; `fourth`, not in view."""
    text: str
    gold: tuple[Gold, ...] = ()
    """Empty: the sources do not answer it."""


def read_questions(name: str = "questions") -> tuple[Question, ...]:
    """Read the questions of a set."""
    with (HERE / f"{name}.toml").open("rb") as file:
        found: list[dict[str, Any]] = tomllib.load(file)["questions"]
    return tuple(
        Question(
            each["id"], each["language"], each["part"], each["question"], tuple(Gold(**gold) for gold in each.get("gold", ()))
        )
        for each in found
    )


def read_documents(name: str = "questions") -> dict[str, str]:
    """Return the documents of a set by name: the pages of this project's documentation, and three to six others.

    The pages are those of one day, so that the figures do not change with them. The page about this benchmark is left out: it
    has questions. In `docs`, `tar --exclude=answers.md -cJf ../benchmarks/answers/pages.tar.xz *.md` takes those of today.
    """
    with tarfile.open(HERE / "pages.tar.xz") as archive:
        pages = {f"docs/{each.name}": _text(archive, each) for each in archive.getmembers() if each.name.endswith(".md")}
    return pages | {path.name: path.read_text(encoding="utf-8") for path in sorted((HERE / SETS[name]).iterdir())}


def _text(archive: tarfile.TarFile, member: tarfile.TarInfo) -> str:
    file = archive.extractfile(member)
    assert file is not None
    return file.read().decode()


def plain(text: str) -> str:
    """Return a text on one line."""
    return " ".join(text.split())

"""The questions, with their gold passages, and the documents that they are asked about."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Gold", "Question", "plain", "read_documents", "read_questions"]

HERE = Path(__file__).parent
PROJECT = HERE.parents[1]


@dataclass(frozen=True, slots=True)
class Gold:
    """Where an answer is."""

    document: str
    heading: str
    """The innermost heading above the sentence."""
    sentence: str
    """A sentence, the row of a table or a line of code, word for word; line breaks count as spaces."""


@dataclass(frozen=True, slots=True)
class Question:
    """A question, and every place that answers it."""

    id: str
    language: str
    part: str
    """`tune` or `check`: two halves. The scoring was fitted with both in view."""
    text: str
    gold: tuple[Gold, ...] = ()
    """Empty: the sources do not answer it."""


def read_questions(path: Path = HERE / "questions.toml") -> tuple[Question, ...]:
    """Read the questions of a file."""
    with path.open("rb") as file:
        found: list[dict[str, Any]] = tomllib.load(file)["questions"]
    return tuple(
        Question(
            each["id"], each["language"], each["part"], each["question"], tuple(Gold(**gold) for gold in each.get("gold", ()))
        )
        for each in found
    )


def read_documents() -> dict[str, str]:
    """Return the documents by name: the pages of this project's documentation, and three others.

    The page about this benchmark is left out: it has questions in it.
    """
    pages = {f"docs/{path.name}": path for path in sorted((PROJECT / "docs").glob("*.md")) if path.stem != HERE.name}
    others = {path.name: path for path in sorted((HERE / "documents").glob("*.md"))}
    return {name: path.read_text(encoding="utf-8") for name, path in {**pages, **others}.items()}


def plain(text: str) -> str:
    """Return a text on one line."""
    return " ".join(text.split())

"""Payloads of the provider formats with the traps they hold, by dialect and kind; the files and their manifest are data."""

import json
from collections.abc import Iterator
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

__all__ = ["DIALECTS", "SAMPLES", "Kind", "Sample", "samples"]

Kind = Literal["request", "response", "stream"]

FOLDER = Path(__file__).parent.parent / "dialects" / "provider_samples"
DIALECTS = ("openai-chat", "openai-responses", "anthropic-messages", "gemini", "pydantic-ai")

_DIALECT_OF = {"gemini-generatecontent": "gemini"}


class Sample(NamedTuple):
    """One payload: a request body, a response body, or the events of a stream."""

    name: str
    dialect: str
    kind: Kind
    traps: tuple[str, ...]

    @property
    def path(self) -> Path:
        return FOLDER / f"{self.name}.json"

    @property
    def body(self) -> Any:
        """The payload as plain JSON; a copy, so that a test may change it."""
        return deepcopy(_parsed(self.path))

    def __str__(self) -> str:
        return self.name


@cache
def _parsed(path: Path) -> Any:
    return json.loads(path.read_bytes())


def _kind(payload: str) -> Kind:
    """What the manifest's words mean. A Pydantic AI history is what a run is asked with: a request."""
    if payload in {"request body", "array of ModelMessage"}:
        return "request"
    if payload == "response body":
        return "response"
    if payload.startswith(("array of stream ", "array of ModelResponseStreamEvent")):
        return "stream"
    raise ValueError(f"the manifest holds a payload of an unknown kind: {payload!r}")


def _read_manifest() -> Iterator[Sample]:
    for entry in _parsed(FOLDER / "manifest.json")["samples"]:
        dialect = _DIALECT_OF.get(entry["format"], entry["format"])
        yield Sample(entry["file"].removesuffix(".json"), dialect, _kind(entry["payload_type"]), tuple(entry["traps"]))


SAMPLES = tuple(_read_manifest())


def samples(dialect: str | None = None, kind: Kind | None = None) -> list[Sample]:
    """Return those of a dialect, of a kind, or both; in the order of the manifest."""
    return [each for each in SAMPLES if dialect in {None, each.dialect} and kind in {None, each.kind}]

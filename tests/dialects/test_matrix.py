"""The fidelity matrix of the docs: what is lost between which formats, measured, not claimed; and that all of it is valid.

To write it anew: `UPDATE_MATRIX=1 make test ARGS="-k matrix"`.
"""

import os
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tests.dialects.samples import SAMPLES
from tests.dialects.test_providers import NOTHING_SAID, PROVIDERS
from tests.providers.samples import samples
from tests.providers.types import as_request, problems

from antiphon import Conversation, check, decode, encode
from antiphon.dialects import Encoded, meaning
from antiphon.dialects._meaning import FACETS
from antiphon.messages._json_values import canonical

PAGE = Path(__file__).parents[2] / "docs" / "dialects" / "index.md"
FORMATS = (*SAMPLES, *PROVIDERS)
SAID = ("text", "call", "arguments", "result", "media", "data")
"""Facets that are looked for wherever they stand."""


@cache
def bodies(name: str) -> list[Any]:
    """All samples of a format."""
    return [SAMPLES[name]] if name in SAMPLES else [each.body for each in samples(name) if each.kind != "stream"]


@cache
def converted(source: str, target: str) -> list[tuple[Conversation, Encoded]]:
    conversations = [decode(body, source) for body in bodies(source)]
    return [(conversation, encode(conversation, target)) for conversation in conversations]


def faults(target: str, encoded: Encoded) -> list[str]:
    """What the types of the SDK and the rules of the service would refuse."""
    if target not in PROVIDERS:
        return []
    found = check(decode(encoded.value, target), target)
    errors = [str(each) for each in found if each.severity == "error" and each.code not in NOTHING_SAID]
    return [*problems(target, "request", as_request(target, encoded.value)), *errors]


def unreported(conversation: Conversation, encoded: Encoded, target: str) -> list[tuple[str, str]]:
    """What messages say that is nowhere in what was written, and of which no loss was reported."""
    back = decode(encoded.value, target, aliases=encoded.aliases)
    there = [{facet: _key(facets.get(facet)) for facet in SAID} for facets in meaning(back)]
    lost = {(loss.message_id, loss.what) for loss in encoded.losses}
    said = Conversation(message for message in conversation if message.lane != "effect")
    return [
        (message.id, facet)
        for message, facets in zip(said, meaning(said), strict=True)
        for facet in SAID
        if facet in facets
        and not {(message.id, "message"), (message.id, facet)} & lost
        and _key(facets[facet]) not in [each[facet] for each in there]
    ]


def _key(value: Any) -> bytes:
    return canonical(value if value is not None else {})


@pytest.mark.parametrize("target", FORMATS)
@pytest.mark.parametrize("source", FORMATS)
def test_every_pair_is_valid_and_reports_what_is_lost(source: str, target: str) -> None:
    for body, (conversation, encoded) in zip(bodies(source), converted(source, target), strict=True):
        if source == target:
            assert canonical(encoded.value) == canonical(body)
            assert encoded.losses == ()
        else:
            assert faults(target, encoded) == []
            assert unreported(conversation, encoded, target) == []
            again = encode(decode(encoded.value, target, aliases=encoded.aliases), target)
            assert canonical(again.value) == canonical(encoded.value)
            assert again.losses == ()


def cell(source: str, target: str) -> str:
    if source == target:
        return "same"
    losses = [loss for _, encoded in converted(source, target) for loss in encoded.losses]
    return f"valid, {len(losses)} lost" if losses else "valid, nothing lost"


def counts() -> str:
    rows = [f"| from ↓ to → | {' | '.join(FORMATS)} |", "|---" * (len(FORMATS) + 1) + "|"]
    rows += [f"| **{source}** | {' | '.join(cell(source, target) for target in FORMATS)} |" for source in FORMATS]
    return "\n".join(rows) + "\n"


def details() -> str:
    rows = ["| from | to | lost (how often) |", "|---|---|---|"]
    order = {
        what: place
        for place, what in enumerate((*FACETS, "extras", "message", "order", "added", "tools", "model", "settings"))
    }
    for source in FORMATS:
        for target in FORMATS:
            found = Counter(loss.what for _, encoded in converted(source, target) for loss in encoded.losses)
            words = ", ".join(f"{what} {found[what]}" for what in sorted(found, key=order.__getitem__))
            rows += [f"| {source} | {target} | {words} |"] if words else []
    return "\n".join(rows) + "\n"


@pytest.mark.parametrize(("name", "make"), [("matrix", counts), ("details", details)])
def test_the_matrix_in_the_docs_is_the_measured_one(name: str, make: Any) -> None:
    page = PAGE.read_text()
    begin, end = f"<!-- {name} -->\n", f"<!-- /{name} -->\n"
    before, rest = page.split(begin)
    shown, after = rest.split(end)
    if os.environ.get("UPDATE_MATRIX"):
        PAGE.write_text(before + begin + make() + end + after)
    else:
        assert shown == make()

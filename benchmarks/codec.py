"""Messages: construct, load and dump, on five cases, against raw Pydantic, msgspec and the peers; and those of Atlas."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from antiphon.messages import _unchecked as unchecked
from benchmarks import _atlas
from benchmarks._harness import Goal, Table, clocked
from benchmarks._messages import Case, cases
from benchmarks.peers import antiphon_, autogen_, langchain_, msgspec_, pydantic_ai_, raw_pydantic
from benchmarks.peers._work import Vocabulary, Work

__all__ = ["tables"]

RAW = "raw pydantic"
CHECKED = "raw pydantic, JsonValue"
UNCHECKED = "antiphon, unchecked"

PEERS: dict[str, Callable[[Case], Work | None]] = {
    "antiphon": antiphon_.work,
    RAW: raw_pydantic.work,
    CHECKED: raw_pydantic.work_json_value,
    "msgspec": msgspec_.work,
    "pydantic-ai": pydantic_ai_.work,
    "langchain-core": langchain_.work,
    "autogen-core": autogen_.work,
}

GOALS: dict[tuple[str, str], tuple[Goal, ...]] = {
    ("construct", "conversation"): (Goal("antiphon", 1.15, RAW), Goal(UNCHECKED, 0.50, RAW)),
    ("load", "short text"): (Goal("antiphon", 1.15, RAW),),
    ("load", "conversation"): (Goal("antiphon", 1.0, RAW),),
    ("dump", "conversation"): (Goal("antiphon", 0.20, RAW), Goal("antiphon", 1.5, "msgspec")),
}

NOTES = {
    "construct": (
        "raw pydantic neither looks at nor copies what stands in an Any; JsonValue looks and copies, as antiphon does",
        "a constructed antiphon message keeps nested JSON as text until someone looks at it",
        "unchecked: the private way for values that are checked already; like raw pydantic it neither looks nor copies",
    ),
    "load": ("antiphon with every check on; the peers below msgspec have other fields, so their work is only about the same",),
    "dump": (
        "antiphon: what was loaded or constructed, arguments and results text still; looked at: all values parsed",
        "the peers below msgspec have other fields, so their work is only about the same",
    ),
}


def tables(part: str = "") -> Iterator[Table]:
    """Make the tables with `part` in their names, one by one."""
    for operation in ("construct", "load", "dump"):
        for case in cases():
            if part in f"{operation} {case.name}":
                yield _table(operation, case)
    yield from _atlas.tables(part)


def _table(operation: str, case: Case) -> Table:
    works = {name: work(case) for name, work in PEERS.items()}
    if operation == "construct":
        works[UNCHECKED] = _unchecked(case)
    if operation == "dump":
        works["antiphon, looked at"] = antiphon_.looked_at(case)
    return Table(
        name=f"{operation} {case.name}",
        unit="us a message",
        scale=1e6,
        baseline=RAW,
        candidates={
            name: clocked(getattr(work, operation), len(case.messages)) for name, work in works.items() if work is not None
        },
        against=(CHECKED, "msgspec"),
        absent=tuple(name for name, work in works.items() if work is None),
        goals=GOALS.get((operation, case.name), ()),
        notes=NOTES[operation],
    )


def _unchecked(case: Case) -> Work:
    """Construct as antiphon's own readers do, from values that are known to be good."""
    vocabulary = Vocabulary(
        message=unchecked.message,
        payloads={
            "parts": unchecked.parts_payload,
            "option_call": unchecked.option_call_payload,
            "option_result": unchecked.option_result_payload,
        },
        parts={"text": unchecked.text_part, "media": unchecked.media_part},
    )

    def construct() -> list[object]:
        return [vocabulary.build(said) for said in case.messages]

    return replace(antiphon_.work(case), construct=construct)

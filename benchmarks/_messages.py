"""The message set, as plain dicts that belong to nobody: five cases, the same on every run and machine.

A message is `{"kind", "envelope", "content"}`: who and when in the envelope, with the keys that antiphon's builders fill; what
is said, called or returned in the content. Peers take from it what they have a place for.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any, TypeAlias

__all__ = ["Case", "Said", "as_text", "cases", "conversation", "turns"]

Said: TypeAlias = dict[str, Any]

TURNS = 40
RESULT_BYTES = 2048
_START = datetime(2026, 1, 31, 12, 0, 0, 123456, tzinfo=UTC)
_CITIES = ("Oslo", "Lisbon", "Nairobi", "Osaka", "Valparaíso", "Gdańsk", "Perth", "Halifax")
_PROSE = (
    "the report shows that ferry traffic in the harbour rose again after the new timetable while most of the older lines were "
    "kept and a second survey found no clear change in how long people wait for a connection between the island and the city"
)


@dataclass(frozen=True)
class Case:
    """A named list of messages. `is_stream`: handled as one conversation, not one by one."""

    name: str
    messages: tuple[Said, ...]
    is_stream: bool = False


class _Source:
    """Ids, times and prose that look real and never change."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self._moment = _START
        self.thread_id = self.new_id()

    def new_id(self) -> str:
        """Return an id in the form of a UUIDv7, later than the last."""
        self._moment += timedelta(milliseconds=731)
        digits = f"{int(self._moment.timestamp() * 1000):012x}7{self._random.getrandbits(76):019x}"
        return "-".join((digits[:8], digits[8:12], digits[12:16], "a" + digits[17:20], digits[20:]))

    def prose(self, words: int) -> str:
        return " ".join(self._random.choices(_PROSE.split(), k=words)).capitalize() + "."

    def city(self) -> str:
        return self._random.choice(_CITIES)

    def number(self, most: int) -> int:
        return self._random.randrange(most)

    def message(self, kind: str, content: dict[str, Any], *, policy: str, role: str, step: int, **more: str) -> Said:
        envelope = {
            "id": self.new_id(),
            "policy": policy,
            "role_hint_for_llm": role,
            "step_num": step,
            "turn_id": more.pop("turn_id", "") or self.new_id(),
            "thread_id": self.thread_id,
            "created_at": self._moment,
            **more,
        }
        return {"kind": kind, "envelope": envelope, "content": content}


def _text(source: _Source, step: int) -> Said:
    text = f"How busy was the ferry in {source.city()} on day {step}, and is there a later one? {source.prose(8)}"
    return source.message("parts", {"parts": [_text_part(text)]}, policy="user", role="user", step=step)


def _text_part(text: str) -> dict[str, Any]:
    return {"kind": "text", "fields": {"text": text}}


def _calls(source: _Source, step: int) -> list[Said]:
    turn = source.new_id()
    searched = {"query": f"ferry {source.city()} timetable", "limit": 10, "fields": ["title", "url"], "since": "2026-01-01"}
    looked = {"city": source.city(), "days": 3, "units": {"speed": "m/s", "heat": "C"}, "exact": False}
    return [
        source.message(
            "option_call",
            {"invocation_id": source.new_id(), "option_name": name, "arguments": arguments},
            policy="assistant",
            role="assistant",
            step=step,
            turn_id=turn,
        )
        for name, arguments in (("search_documents", searched), ("get_weather", looked))
    ]


def _result(source: _Source, call: Said, size: int = RESULT_BYTES) -> Said:
    answered = {key: call["content"][key] for key in ("invocation_id", "option_name")}
    return source.message(
        "option_result",
        {**answered, "result": _found(source, size)},
        policy=answered["option_name"],
        role="tool",
        step=call["envelope"]["step_num"],
        in_reply_to=call["envelope"]["id"],
    )


def _found(source: _Source, size: int) -> dict[str, Any]:
    """Return what a search gives back: nested, mixed, one in eight places not ASCII, line breaks in the text."""
    found: dict[str, Any] = {"query": source.prose(4), "total": source.number(5000), "next": None, "results": []}
    while len(as_text(found)) < size - 150:
        number = source.number(90000)
        found["results"].append(
            {
                "id": f"doc-{number}",
                "title": f"{source.city()}: {source.prose(5)}",
                "url": f"https://example.com/archive/2026/{number}",
                "score": round(source.number(10**6) / 10**6, 4),
                "snippet": f"{source.prose(9)}\n{source.prose(7)}",
                "place": {"lat": source.number(18000) / 100 - 90, "lon": source.number(36000) / 100 - 180},
                "tags": ["ferry", "2026", source.prose(1)],
                "open": number % 2 == 0,
            }
        )
    return found


def _shown(source: _Source) -> Said:
    picture = "".join(Random(7).choices("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/", k=2048))
    media = [
        {"url": "https://example.com/pier.jpg", "mime": "image/jpeg", "prompt_hint": "the pier"},
        {"url": f"data:image/png;base64,{picture}", "mime": "image/png", "prompt_hint": "the same pier, from above"},
    ]
    shown = [
        {"kind": "media", "fields": {"modality": "image", "id": f"media-{number:016x}", **each}}
        for number, each in enumerate(media)
    ]
    content = {"parts": [_text_part("Which of these two shows the new pier?"), *shown]}
    return source.message("parts", content, policy="user", role="user", step=1)


def _conversation(source: _Source, turns: int, size: int) -> Iterator[Said]:
    for step in range(1, turns + 1):
        yield _text(source, step)
        calls = _calls(source, step)
        yield from calls
        yield from (_result(source, call, size) for call in calls)


def cases() -> tuple[Case, ...]:
    """Return the five cases."""
    return (
        Case("short text", (_text(_Source(1), 1),)),
        Case("two calls", tuple(_calls(_Source(2), 1))),
        Case("2 KB result", (_result(_Source(3), _calls(_Source(3), 1)[0]),)),
        Case("three parts", (_shown(_Source(4)),)),
        conversation(),
    )


def conversation(turns: int = TURNS, result_bytes: int = RESULT_BYTES) -> Case:
    """Return the last case, or one like it of another length (five messages a turn) or with other results."""
    return Case("conversation", tuple(_conversation(_Source(5), turns, result_bytes)), is_stream=True)


# ---------------------------------------------------------------- for the peers


def as_text(value: object) -> str:
    """Return JSON as most peers keep it: a string."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def turns(messages: tuple[Said, ...]) -> list[list[Said]]:
    """Group neighbours of one kind: a peer says two calls, and often two results, in one message."""
    groups: list[list[Said]] = []
    for message in messages:
        if groups and message["kind"] != "parts" and groups[-1][0]["kind"] == message["kind"]:
            groups[-1].append(message)
        else:
            groups.append([message])
    return groups

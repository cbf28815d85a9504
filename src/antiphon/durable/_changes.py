"""Changes: how a run continues if the program differs from the recorded steps.

A continued run repeats its recorded steps. If the program was changed since, a step differs: a model request
has another prompt, a tool has another schema. Then `on_change` decides:

| `on_change` | a recorded step that differs |
|---|---|
| `stop` | `HistoryMismatchError`, with the differences. Nothing is started |
| `continue` | its recorded result is used unchanged, and steps without a record run under the new program |
| `restart` | it runs again, and so does everything that follows from it. Refused if the run has started a `once` effect |

The thread records each choice in a row `RUN_CHANGED`: without such a row, G11 holds without exception. A person chooses with a
row `RUN_CHANGE_ALLOWED`, which covers the steps that were recorded before it. So a permission covers one change: steps under
the new program are recorded after it, and are compared again.

**Covered** are model requests, plain tool calls and effects of the program itself. Toolkits, guards, approvals and notes are
not, because they consist of other effects: a thread that was started under a guard refuses a program without it.
"""

from __future__ import annotations

import json
from asyncio import Lock
from base64 import b32encode
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from typing import Any, Final, Literal, TypeAlias, cast

import orjson

from antiphon.durable._course import recorded_arguments
from antiphon.durable._history import PROGRAM
from antiphon.durable._opened import OnChange, Opened
from antiphon.ledger import Owners
from antiphon.ledger._unopened import check_opened
from antiphon.messages import RUNTIME_POLICY, DataPart, Json, JsonObject, Message, OptionCallPayload, PartsPayload
from antiphon.messages._keys import as_key, base_of, changed_id, is_below, parent_of
from antiphon.runtime._rows import AGAIN, PARK, RUN

Choice: TypeAlias = Literal["continue", "restart"]

CHANGED: Final = "RUN_CHANGED"
ALLOWED: Final = "RUN_CHANGE_ALLOWED"


# ---------------------------------------------------------------- choices


@dataclass(frozen=True, slots=True)
class StepChange:
    """How a step of the program differs from the recorded one."""

    what: str
    """The difference, in a sentence."""
    lines: Sequence[str] = ()
    """The differences."""
    digest: str = ""
    """The hash of the new step: a choice applies to this step only."""
    is_input: bool = False
    """Whether the input of the program has changed, such as the question."""


class ThreadChanges:
    """The choices that the rows of a thread record, and the steps of the run that were recorded before this attempt."""

    def __init__(self) -> None:
        self._continued: set[tuple[str, str]] = set()
        """Steps, with the digest of the change."""
        self._restarted: set[str] = set()
        self._allowed: dict[str, OnChange] = {}
        """By step, the choice of a person."""
        self.once: list[str] = []
        """The `once` effects that have started in the run."""
        self.steps: list[str] = []
        """The effects of the run, in the order in which they started."""
        self.tools: set[str] = set()
        """The effects that are calls of plain tools."""
        self._is_read = False
        self._lock = Lock()

    @classmethod
    async def of(cls, opened: Opened) -> ThreadChanges:
        """Return the object that a run and all its parts share. The thread is read once."""
        changes = opened.share(cls)
        async with changes._lock:
            if not changes._is_read:
                await changes._read(opened)
                changes._is_read = True
        return changes

    async def _read(self, opened: Opened) -> None:
        root = opened.root
        has_begun = False
        async for record in opened.journal.ledger.read(opened.course.thread_id or ""):
            message, payload = record.message, record.message.payload
            if message.lane == "control":
                self._add_choice(message, root)
            if message.lane != "effect" or not isinstance(payload, OptionCallPayload):
                continue
            has_begun = has_begun or is_of(payload.invocation_id, root)
            if not has_begun or payload.option_name in (AGAIN, PARK):
                continue
            effects, arguments = payload.arguments.get("effects"), recorded_arguments(message)
            # Also rows of others: an effect of a run may have an id without the name of the run.
            if effects == "once":
                self.once.append(payload.invocation_id)
            if is_below(payload.invocation_id, root):
                self.steps.append(payload.invocation_id)
                if effects is not None and arguments is not None and "tool" in arguments:
                    self.tools.add(payload.invocation_id)

    def _add_choice(self, message: Message, root: str) -> None:
        data = _data_of(message)
        if data is None:
            return
        choice, step = data.get("choice"), data.get("step")
        if data.get("type") == CHANGED and message.policy == RUNTIME_POLICY and isinstance(step, str):
            if choice == "restart":
                self._restarted.add(step)
            else:
                self._continued.add((step, str(data.get("digest"))))
        elif data.get("type") == ALLOWED and data.get("run") == root and choice in ("continue", "restart"):
            agents = (parent_of(step) for step in self.steps)
            self._allowed = dict.fromkeys((*self.steps, *agents), cast("OnChange", choice))

    def choice(self, step: str, change: StepChange, on_change: OnChange) -> OnChange:
        """Return the choice for a step that differs."""
        if (step, change.digest) in self._continued:
            return "continue"
        return self._allowed.get(step, on_change)

    def is_restarted(self, step: str) -> bool:
        """Whether the recorded outcome of a step is ignored, because the step is done again."""
        return step in self._restarted

    async def choose(self, opened: Opened, step: str, change: StepChange, choice: Choice) -> None:
        """Record the choice for a step."""
        if (step, change.digest) in self._continued:
            return
        by = "person" if step in self._allowed else "program"
        row: dict[str, Json] = {"type": CHANGED, "step": step, "choice": choice, "by": by, "digest": change.digest}
        row["differences"] = list(change.lines)
        await write_about(opened, changed_id(step, change.digest), row, subject=step)
        if choice == "restart":
            self._restarted.add(step)
        else:
            self._continued.add((step, change.digest))

    def not_reached(self, part: str, reached: Collection[str], before: str) -> list[str]:
        """Return the calls of plain tools in a run of an agent that the program has not repeated before a step."""
        earlier = self.steps[: self.steps.index(before)] if before in self.steps else self.steps
        return [step for step in earlier if step in self.tools and parent_of(step) == part and base_of(step) not in reached]


def _data_of(message: Message) -> JsonObject | None:
    match message.payload:
        case PartsPayload(parts=(DataPart(data=JsonObject() as data),)):
            return data
        case _:
            return None


def is_of(invocation_id: str, root: str) -> bool:
    """Whether an id belongs to a run, or to a part of it."""
    return invocation_id == root or is_below(invocation_id, root)


async def write_about(opened: Opened, id: str, data: dict[str, Json], *, subject: str) -> None:
    """Write a row about a run, with the next rows: before anything that depends on it."""
    thread_id = opened.course.thread_id or ""
    row = Message(
        id=id,
        policy=RUNTIME_POLICY,
        payload=PartsPayload(parts=(DataPart(data=data),)),
        thread_id=thread_id,
        lane="control",
        parent_id=subject,
        correlation_id=id,
    )
    await opened.journal.write_soon(thread_id, [row])


async def allow_change(ledger: Owners, thread_id: str, choice: Choice, *, run_id: str | None = None) -> tuple[str, ...]:
    """Record that a person allows the open runs of a thread, or one of them, to continue under a changed program.

    Return these runs.

    It covers the steps that are recorded so far. Toolkits, guards and approvals are never covered.

    Raises:
        ValueError: there is no such open run.
    """
    check_opened(ledger)
    calls = [record.message for record in await ledger.open_calls(thread_id) if record.message.lane == "effect"]
    runs = [call.invocation_id or "" for call in calls if cast("OptionCallPayload", call.payload).option_name == RUN]
    allowed = [run for run in runs if run_id is None or run == f"{thread_id}/{as_key(run_id)}"]
    if not allowed:
        raise ValueError(f"thread {thread_id!r} has no open run{'' if run_id is None else f' {run_id!r}'}")
    for run in allowed:
        payload = PartsPayload(parts=(DataPart(data={"type": ALLOWED, "run": run, "choice": choice}),))
        row = Message(policy="user", payload=payload, thread_id=thread_id, lane="control", to=(PROGRAM,), correlation_id=run)
        await ledger.post(thread_id, row)
    return tuple(allowed)


async def is_allowed(ledger: Owners, thread_id: str, run: str, since: datetime) -> bool:
    """Whether a person has allowed a run to continue under a changed program since a time; `run` is its invocation."""
    records = await ledger.find(correlation_id=run, thread_id=thread_id)
    rows = [record.message for record in records if record.recorded_at >= since and record.message.lane == "control"]
    return any(data.get("type") == ALLOWED for row in rows if (data := _data_of(row)) is not None)


# ---------------------------------------------------------------- differences, as text for a person


def short_hash(value: Any) -> str:
    """Return a hash of a JSON value, in base 32: hexadecimal digits may look like a card number, and be redacted."""
    try:
        text = orjson.dumps(value, option=orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS, default=str)
    except TypeError:  # an integer of more than 64 bits
        text = json.dumps(value, sort_keys=True, default=str).encode()
    return b32encode(sha256(text).digest()).decode()[:26].lower()


_WIDTH = 140
_AROUND = 40
"""The number of characters shown before the first difference in a long line."""
_MOST_LINES = 6


def text_difference(name: str, before: str | None, after: str | None) -> list[str]:
    """Return how a text has changed, as lines of a diff; no lines if it has not."""
    if before == after:
        return []
    from difflib import SequenceMatcher  # noqa: PLC0415 (only for an error)

    before_lines, after_lines, shown = (before or "").splitlines(), (after or "").splitlines(), [f"{name}:"]
    for tag, *places in SequenceMatcher(None, before_lines, after_lines, autojunk=False).get_opcodes():
        if tag == "equal":
            continue
        old, new = before_lines[places[0] : places[1]], after_lines[places[2] : places[3]]
        # The place of the first difference, if one line has replaced another: long lines are cut around it.
        pairs = enumerate(zip(old[0], new[0], strict=False)) if old and new else ()
        place = next((place for place, (one, other) in pairs if one != other), 0)
        shown += [f"  - {_cut(line, place)}" for line in old] + [f"  + {_cut(line, place)}" for line in new]
    rest = len(shown) - 1 - _MOST_LINES
    return shown if rest <= 0 else [*shown[: 1 + _MOST_LINES], f"  … and {rest} more lines"]


def _cut(line: str, place: int) -> str:
    start = max(0, place - _AROUND) if len(line) > _WIDTH else 0
    shown = line[start : start + _WIDTH]
    return f"{'…' if start else ''}{shown}{'…' if start + _WIDTH < len(line) else ''}"


def tools_difference(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Return which tools have changed, and how. A tool is a JSON object."""
    lines = [f"tool {name!r} is gone" for name in before if name not in after]
    lines += [f"tool {name!r} is new" for name in after if name not in before]
    for name in before:
        if name in after and before[name] != after[name]:
            fields = [
                line
                for field in dict.fromkeys((*before[name], *after[name]))
                for line in text_difference(
                    f"{field} of tool {name!r}", _as_text(before[name].get(field)), _as_text(after[name].get(field))
                )
            ]
            lines += fields or [f"tool {name!r} has changed"]
    return lines


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False, default=str)


def values_difference(name: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Return which of some settings have changed."""
    changed = [key for key in dict.fromkeys((*before, *after)) if before.get(key) != after.get(key)]
    return [f"{name} {key!r}: {before.get(key)!r}, now {after.get(key)!r}" for key in changed]

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

from asyncio import Lock
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal, TypeAlias, cast

from antiphon.durable._history import PROGRAM
from antiphon.durable._opened import OnChange, Opened
from antiphon.ledger import Owners
from antiphon.ledger._unopened import check_opened
from antiphon.messages import (
    RUNTIME_POLICY,
    DataPart,
    Json,
    JsonObject,
    Message,
    OptionCallPayload,
    PartsPayload,
)
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
            elif message.lane == "effect" and isinstance(payload, OptionCallPayload):
                has_begun = has_begun or is_of(payload.invocation_id, root)
                if has_begun:
                    self._add_step(payload, root)

    def _add_step(self, payload: OptionCallPayload, root: str) -> None:
        if payload.option_name in (AGAIN, PARK):
            return
        # Also rows of others: an effect of a run may have an id without the name of the run.
        if payload.arguments.get("effects") == "once":
            self.once.append(payload.invocation_id)
        if is_below(payload.invocation_id, root):
            self.steps.append(payload.invocation_id)
            arguments = payload.arguments.get("arguments")
            if isinstance(arguments, JsonObject) and "tool" in arguments and payload.arguments.get("effects") is not None:
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
        LedgerError: it could not be stored.
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

"""History: what the rows of a thread say of a run and of its earlier attempts."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, NamedTuple, cast, get_args

from antiphon.durable._budget import kind_of
from antiphon.durable._course import MARK, Mark
from antiphon.ledger import Owners, Record
from antiphon.messages import RUNTIME_POLICY, Json, Message, OptionCallPayload, OptionResultPayload, thaw
from antiphon.messages._keys import base_of, is_below, parent_of
from antiphon.runtime._rows import APPROVE, PARK, REOPEN, option_of

RUN_KIND: Final = "run"
"""Threads of runs have the kind `run/NAME` in the ledger."""
PROGRAM: Final = "program"
"""The name of the program in the rows of a run."""
FAILED: Final = "RUN_FAILED"
"""A call that is open from the failure of a run until the run is continued."""
FAILED_STATUS: Final = "failed"
QUESTION: Final = "question"
"""What the intent of an agent's first request records besides its arguments: a digest of the question."""
RETURNED: Final = "returned"
"""The key of a program's return value in the end of its run."""


class RecordedStep(NamedTuple):
    """A step that an earlier attempt of a run has asked for."""

    id: str
    """Its invocation, before any renaming; for an agent, that of its run."""
    course: str
    """The invocation of the course that it belongs to."""
    mark: Mark | None
    is_agent: bool = False
    is_deed: bool = False
    """Whether it changes something: its effects are not `none`."""
    is_in_doubt: bool = False
    """Whether it must not be done twice, was begun, and has no outcome."""


@dataclass(frozen=True)
class Recorded:
    """What the ledger had of a run when it was opened."""

    began: datetime | None = None
    """When the first attempt started."""
    input: Json = None
    """The input of the run, as stored."""
    returned: Mapping[str, Any] | None = None
    """The return value of the program of a finished run, under `RETURNED`; None if there is none."""
    again: tuple[str, ...] = ()
    """The rows that record further attempts, with that of this one."""
    had_stopped: bool = False
    """Whether the thread had the status stopped or failed."""
    forgiven: Collection[str] = ()
    """The effects whose failure ended the previous attempt: they are retried."""
    agents: Mapping[str, str | None] = field(default_factory=dict[str, str | None])
    """The runs of agents that an earlier attempt has recorded, each with the digest of its question."""
    steps: Sequence[RecordedStep] = ()
    """The steps of programs, tools and agents' runs that earlier attempts have recorded, in order."""

    @classmethod
    async def of_finished(cls, ledger: Owners, thread_id: str, run: str, rows: Sequence[Record]) -> Recorded:
        """Return what the rows of a run say that has ended. With a return value, no code runs that could ask for a step."""
        began, payload = rows[0].recorded_at, rows[-1].message.payload
        result = thaw(payload.result) if isinstance(payload, OptionResultPayload) and not payload.is_error else None
        if isinstance(result, Mapping) and RETURNED in result:
            return cls(began, input_of(rows[0]), cast("Mapping[str, Any]", result))
        history = await History.read(ledger, thread_id, run, rows[0].seq)
        return cls(began, input_of(rows[0]), agents=history.agents, steps=history.steps)


async def run_rows(ledger: Owners, thread_id: str, run: str) -> list[Record]:
    """Return the rows that record the start and the end of a run."""
    records = await ledger.find(invocation_id=run, thread_id=thread_id)
    return [record for record in records if record.message.lane == "effect"]


def has_ended(rows: Sequence[Record]) -> bool:
    """Whether a run has ended, by those rows."""
    return bool(rows) and rows[-1].message.kind == "option_result"


def input_of(run: Record) -> Json:
    """Return the input that the row of a run's start records."""
    payload = run.message.payload
    return payload.arguments.get("input") if isinstance(payload, OptionCallPayload) else None


def failures_of(rows: Sequence[Record], run: str) -> list[str]:
    """Return the open rows that record the failure of a run."""
    effects = [row.message for row in rows if row.message.lane == "effect" and row.message.parent_id == run]
    return [row.invocation_id or "" for row in effects if option_of(row) == FAILED]


def waits_for_person(rows: Sequence[Record], run: str) -> bool:
    """Whether a run waits for a person, by the open calls of its thread: for an approval, or for the outcome of a call."""
    waiting = [row.message for row in rows if option_of(row.message) in (APPROVE, PARK)]
    return any(is_below(call, run) for row in waiting for call in (row.invocation_id, row.parent_id))


class History:
    """The steps that earlier attempts of a run have made, and how they ended."""

    def __init__(self, run: str) -> None:
        self._run = run
        self._reopened: set[str] = set()
        self._last_failures: set[str] = set()
        """The effects that have failed since the last one began."""
        self._harmless: set[str] = set()
        self._failed: set[str] = set()
        self._steps: list[RecordedStep] = []
        self._places: dict[str, int] = {}
        """By course inside of the run, the place of its first step."""
        self._requested: set[str] = set()
        """The courses with a model request: the runs of agents."""
        self._questions: dict[str, str] = {}
        self._doubts: set[str] = set()

    @classmethod
    async def read(cls, ledger: Owners, thread_id: str, run: str, since: int) -> History:
        """Read the rows of a run from a position on."""
        history = cls(run)
        async for record in ledger.read(thread_id, since):
            if record.message.lane == "effect" and is_below(record.message.invocation_id, run):
                history._add(record.message)
        return history

    @property
    def forgiven(self) -> frozenset[str]:
        """The failed effects that ended the run: they are retried, if that is safe or a person has requested it.

        An earlier failure stays: the program has seen it and continued.
        """
        return frozenset(self._failed | self._reopened)

    @property
    def agents(self) -> Mapping[str, str | None]:
        """The runs of agents in the order in which they began, each with the digest of its question."""
        return {part: self._questions.get(part) for part in self._places if part in self._requested}

    @property
    def steps(self) -> Sequence[RecordedStep]:
        """The recorded steps in order, and the runs of agents at the place of their first step."""
        steps = (step for step in self._steps if not step.is_agent or step.id in self._requested)
        return tuple(step._replace(is_in_doubt=step.id in self._doubts) for step in steps)

    def _add(self, message: Message) -> None:
        payload = message.payload
        if option_of(message) == REOPEN:
            reopened = message.parent_id or ""
            # What failed inside of it made it fail: with that failure, it would fail again for ever.
            inside = {failed for failed in self._last_failures if is_below(failed, base_of(reopened))}
            self._reopened |= {reopened, *inside}
        elif isinstance(payload, OptionCallPayload):
            self._failed.clear()
            self._last_failures.clear()
            if kind_of(message) == "request":
                self._requested.add(parent_of(payload.invocation_id))
            if payload.arguments.get("effects") in ("none", "idempotent"):
                self._harmless.add(payload.invocation_id)
            elif "effects" in payload.arguments:
                self._doubts.add(base_of(payload.invocation_id))
            if "effects" in payload.arguments:
                self._add_step(payload)
        elif isinstance(payload, OptionResultPayload):
            self._doubts.discard(base_of(payload.invocation_id))
            if payload.is_error and message.policy != RUNTIME_POLICY:
                self._last_failures.add(payload.invocation_id)
                self._failed |= self._harmless & {payload.invocation_id}  # an outcome that a person has recorded stays

    def _add_step(self, payload: OptionCallPayload) -> None:
        id = base_of(payload.invocation_id)  # noqa: A001 (that of the step)
        part, asked = parent_of(id), payload.arguments.get(MARK)
        mark = cast("Mark | None", asked if asked in get_args(Mark) else None)
        if part != self._run and part not in self._places:
            self._places[part] = len(self._steps)
            self._steps.append(RecordedStep(part, parent_of(part), None, is_agent=True))
        if isinstance(question := payload.arguments.get(QUESTION), str):
            self._questions[part] = question
            if part in self._places:  # the mark is that of the agent's whole run
                self._steps[self._places[part]] = RecordedStep(part, parent_of(part), mark, is_agent=True)
        if id == payload.invocation_id:  # a further attempt has the place of the first
            self._steps.append(RecordedStep(id, part, mark, is_deed=payload.arguments.get("effects") != "none"))

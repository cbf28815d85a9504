"""Changed programs: how a run continues if the program differs from the recorded steps.

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

**Patches.** `LedgerRun.patched` returns whether a run takes a new branch of its program. A run that has already passed that
place does not: it has recorded steps that the program has not reached yet.
"""

from __future__ import annotations

import asyncio
import json
from asyncio import Lock
from base64 import b32encode
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from difflib import SequenceMatcher
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final, Literal, NoReturn, TypeAlias, cast

import orjson
from typing_extensions import override

from antiphon.agents._opening import MARK, PROGRAM, Mark, OnChange, Opened, Place, RecordedStep
from antiphon.errors import DeliveryError, EffectFailedError, HistoryMismatchError, LedgerError, ParkedError
from antiphon.ledger import command_line
from antiphon.messages import (
    RUNTIME_POLICY,
    DataPart,
    Json,
    JsonObject,
    Message,
    OptionCallPayload,
    OptionResultPayload,
    PartsPayload,
    thaw,
)
from antiphon.messages.keys import as_key, base_of, changed_id, child_id, is_below, parent_of, park_id, patch_id
from antiphon.runtime import Effects
from antiphon.runtime.extending import AGAIN, PARK, RUN, Effect, says_the_same_value

if TYPE_CHECKING:
    from antiphon.ledger import Ledger

Choice: TypeAlias = Literal["continue", "restart"]

CHANGED: Final = "RUN_CHANGED"
ALLOWED: Final = "RUN_CHANGE_ALLOWED"
_PATCHED: Final = "RUN_PATCHED"


def short_hash(value: Any) -> str:
    """Return a hash of a JSON value, in base 32: hexadecimal digits may look like a card number, and be redacted."""
    words = orjson.dumps(value, option=orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS, default=str)
    return b32encode(sha256(words).digest()).decode()[:26].lower()


# ---------------------------------------------------------------- differences, as text

_WIDTH = 140
_AROUND = 40
"""The number of characters shown before the first difference in a long line."""
_MOST_LINES = 6


def text_difference(name: str, before: str | None, after: str | None) -> list[str]:
    """Return how a text has changed, as lines of a diff; no lines if it has not."""
    if before == after:
        return []
    return [f"{name}:", *_limited(_diff((before or "").splitlines(), (after or "").splitlines()))]


def _diff(before: Sequence[str], after: Sequence[str]) -> Iterator[str]:
    for tag, start, end, other_start, other_end in SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        if tag != "equal":
            old, new = before[start:end], after[other_start:other_end]
            place = _first_difference(old[0], new[0]) if old and new else 0
            yield from (f"  - {_cut(line, place)}" for line in old)
            yield from (f"  + {_cut(line, place)}" for line in new)


def _first_difference(old: str, new: str) -> int:
    return next((place for place, (one, other) in enumerate(zip(old, new, strict=False)) if one != other), 0)


def _cut(line: str, place: int) -> str:
    start = max(0, place - _AROUND) if len(line) > _WIDTH else 0
    shown = line[start : start + _WIDTH]
    return f"{'…' if start else ''}{shown}{'…' if start + _WIDTH < len(line) else ''}"


def _limited(lines: Iterator[str]) -> list[str]:
    found = list(lines)
    left = len(found) - _MOST_LINES
    return found if left <= 0 else [*found[:_MOST_LINES], f"  … and {left} more lines"]


def tools_difference(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Return which tools have changed, and how. A tool is a JSON object."""
    lines = [f"tool {name!r} is gone" for name in before if name not in after]
    lines += [f"tool {name!r} is new" for name in after if name not in before]
    for name in before:
        if name in after and before[name] != after[name]:
            lines += _tool_difference(name, before[name], after[name])
    return lines


def _tool_difference(name: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    lines: list[str] = []
    for field in dict.fromkeys((*before, *after)):
        old, new = (_as_text(each.get(field)) for each in (before, after))
        lines += text_difference(f"{field} of tool {name!r}", old, new)
    return lines or [f"tool {name!r} has changed"]


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False, default=str)


def values_difference(name: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Return which of some settings have changed."""
    changed = [key for key in dict.fromkeys((*before, *after)) if before.get(key) != after.get(key)]
    return [f"{name} {key!r}: {before.get(key)!r}, now {after.get(key)!r}" for key in changed]


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
        """Return the object that a run and all its parts share. The thread is read once.

        Raises:
            LedgerError: it cannot be read.
        """
        own = opened.share(cls)
        async with own._lock:
            if not own._is_read:
                await own._read(opened)
                own._is_read = True
        return own

    async def _read(self, opened: Opened) -> None:
        root = opened.root
        has_begun = False
        async for record in opened.journal.ledger.read(opened.course.thread_id or ""):
            message, payload = record.message, record.message.payload
            if message.lane == "control":
                self._heard_choice(message, root)
            elif message.lane == "effect" and isinstance(payload, OptionCallPayload):
                has_begun = has_begun or is_of(payload.invocation_id, root)
                if has_begun:
                    self._heard_step(payload, root)

    def _heard_step(self, payload: OptionCallPayload, root: str) -> None:
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

    def _heard_choice(self, message: Message, root: str) -> None:
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
        """Record the choice for a step.

        Raises:
            LedgerError: it could not be stored.
        """
        if (step, change.digest) in self._continued:
            return
        by = "person" if step in self._allowed else "program"
        said: dict[str, Json] = {"type": CHANGED, "step": step, "choice": choice, "by": by, "digest": change.digest}
        said["differences"] = list(change.lines)
        await _write(opened, changed_id(step, change.digest), said, about=step)
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


async def _write(opened: Opened, id: str, said: dict[str, Json], *, about: str) -> None:
    """Write a row about a run, with the next rows: before anything that depends on it."""
    thread_id, payload = opened.course.thread_id or "", PartsPayload(parts=(DataPart(data=said),))
    own: dict[str, Any] = {"thread_id": thread_id, "lane": "control", "parent_id": about, "correlation_id": id}
    await opened.journal.write_soon(thread_id, [Message(id=id, policy=RUNTIME_POLICY, payload=payload, **own)])


async def allow_change(ledger: Ledger, thread_id: str, choice: Choice, *, run_id: str | None = None) -> tuple[str, ...]:
    """Record that a person allows the open runs of a thread, or one of them, to continue under a changed program.

    Return these runs.

    It covers the steps that are recorded so far. Toolkits, guards and approvals are never covered.

    Raises:
        ValueError: there is no such open run.
        LedgerError: it could not be stored.
    """
    calls = [record.message for record in await ledger.open_calls(thread_id) if record.message.lane == "effect"]
    runs = [call.invocation_id or "" for call in calls if cast("OptionCallPayload", call.payload).option_name == RUN]
    chosen = [run for run in runs if run_id is None or run == f"{thread_id}/{as_key(run_id)}"]
    if not chosen:
        raise ValueError(f"thread {thread_id!r} has no open run{'' if run_id is None else f' {run_id!r}'}")
    for run in chosen:
        said: dict[str, Json] = {"type": ALLOWED, "run": run, "choice": choice}
        own: dict[str, Any] = {"thread_id": thread_id, "lane": "control", "to": (PROGRAM,), "correlation_id": run}
        await ledger.post(thread_id, Message(policy="user", payload=PartsPayload(parts=(DataPart(data=said),)), **own))
    return tuple(chosen)


async def is_allowed(ledger: Ledger, thread_id: str, run: str, since: datetime) -> bool:
    """Whether a person has allowed a run to continue under a changed program since a time; `run` is its invocation.

    Raises:
        LedgerError: it cannot be read.
    """
    records = await ledger.by_correlation(run, thread_id=thread_id)
    rows = [record.message for record in records if record.recorded_at >= since and record.message.lane == "control"]
    return any(data.get("type") == ALLOWED for row in rows if (data := _data_of(row)) is not None)


# ---------------------------------------------------------------- steps


class StepOrder:
    """The order in which a run asks for its recorded steps. It is checked before a step starts.

    The task of a program, or of the function of an effect, does its steps one after the other, so it asks for the recorded
    ones in their order, and for new ones after them. Another order is another program, with a step that was renamed,
    removed or moved.
    Steps of other tasks, such as those of `asyncio.gather`, come in any order. So do steps while an exception ends the work,
    unless it is the recorded outcome of a step: it may come elsewhere in the next attempt. What an agent does next is compared
    by its requests.

    Where the order says nothing, a new `once` step waits until the program has asked for each recorded one: it may be one of
    them under another name, and would be done twice. No recorded step depends on one that was never begun, so each comes, or
    the run stops.
    """

    def __init__(self) -> None:
        self.patience = _PATIENCE
        """Seconds for which a new step waits for recorded ones."""
        self.agents: set[str] = set()
        """The runs of agents that the program has begun in this attempt."""
        self._excused: set[str] = set()
        """The recorded steps that need not be repeated, by a choice that the thread records."""

    @classmethod
    def of(cls, opened: Opened) -> StepOrder:
        """Return the object that a run and all its parts share."""
        return opened.share(cls)

    async def check(self, opened: Opened, step: str, option: str, on_change: OnChange, effects: Effects) -> None:
        """Refuse a step, if its course has another recorded one at this place.

        Raises:
            HistoryMismatchError: it has.
            LedgerError: the choice could not be stored.
        """
        place: Place | None = getattr(opened.course, "place", None)
        if not opened.steps or opened.is_finished or place is None:
            return
        mark, course = place.mark(), parent_of(child_id(opened.course.invocation_id, "step"))
        own = [expected for expected in opened.steps if expected.course == course]
        for expected in opened.steps:
            if expected.id == base_of(step):
                return
            if mark is None and expected.course == course and expected.mark is None and not self._is_reached(opened, expected):
                await self._choose(opened, expected, _replaced(opened, expected, step, option), on_change)
        if effects == "once":
            await self._wait(opened, [each for each in own if each.is_once and _may_be(each, mark)], step, option, on_change)

    async def _wait(
        self, opened: Opened, recorded: Sequence[RecordedStep], step: str, option: str, on_change: OnChange
    ) -> None:
        """Wait until the program has asked for recorded steps, before it starts a new one."""
        loop = asyncio.get_running_loop()
        until, pause = loop.time() + self.patience, _FIRST_PAUSE
        while left := [each for each in recorded if not self._is_reached(opened, each)]:
            if loop.time() >= until:
                await self._choose(opened, left[0], _replaced(opened, left[0], step, option), on_change)
            else:
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)

    async def check_end(self, opened: Opened) -> None:
        """Refuse to end a run whose program did not ask for a recorded step.

        Raises:
            HistoryMismatchError: there is one.
            LedgerError: the choice could not be stored.
        """
        for expected in () if opened.is_finished else opened.steps:
            is_own = expected.course == opened.root and not expected.is_agent and expected.mark != "unwinding"
            if is_own and not self._is_reached(opened, expected):
                what = f"the program ends without {expected.id!r}, which thread {opened.course.thread_id!r} records"
                change = StepChange(what, digest=short_hash([expected.id]))
                await self._choose(opened, expected, change, opened.on_change or "stop")

    def _is_reached(self, opened: Opened, step: RecordedStep) -> bool:
        reached: Collection[str] = getattr(opened.course, "reached", ())
        return step.id in reached or step.id in self.agents or step.id in self._excused

    async def _choose(self, opened: Opened, expected: RecordedStep, change: StepChange, on_change: OnChange) -> None:
        changes = await ThreadChanges.of(opened)
        choice = changes.choice(expected.id, change, on_change)
        if choice == "stop":
            raise stopped_error(opened, change)
        if choice == "restart" and changes.once:
            reason = f"it cannot restart: {changes.once[0]!r} must not be done twice, and was begun"
            raise stopped_error(opened, change, reason)
        await changes.choose(opened, expected.id, change, choice)
        self._excused.add(expected.id)


_PATIENCE: Final = 30.0
"""Seconds: longer than parallel parts of a program take, as a rule, to reach what they have done before."""
_FIRST_PAUSE: Final = 0.001
_LONGEST_PAUSE: Final = 0.1


def _may_be(recorded: RecordedStep, mark: Mark | None) -> bool:
    """Whether a new step may be a recorded one under another name. Steps of cleaning up replace each other only."""
    return (recorded.mark == "unwinding") == (mark == "unwinding")


def _replaced(opened: Opened, recorded: RecordedStep, step: str, option: str) -> StepChange:
    what = f"the program does {option!r} where thread {opened.course.thread_id!r} records {recorded.id!r}"
    return StepChange(f"{what}, in {step!r}", digest=short_hash([recorded.id, step]))


def stopped_error(opened: Opened, change: StepChange, refusal: str | None = None) -> HistoryMismatchError:
    """Return the error that stops a run."""
    lines = [change.what, *change.lines]
    if refusal is not None:
        lines.append(refusal)
    elif not opened.is_program:
        lines.append("restore the program, or begin the work anew")
    elif not opened.is_finished:
        thread_id = opened.course.thread_id or ""
        command = command_line(opened.journal.ledger, "resume", thread_id, options="--on-change continue")
        lines.append(
            f"to go on with what is recorded: `{command}` and start the program again,"
            ' or ledger_run(..., on_change="continue"). For other work, give the run another id'
        )
    else:
        lines.append("the run is finished: for other work, give it another id")
    return HistoryMismatchError("\n".join(lines), opened.course.to)


def asked(place: Place | None) -> dict[str, Json]:
    """Return what an intent records of how its step was asked for; nothing, if it came after the steps before it."""
    mark = None if place is None else place.mark()
    return {} if mark is None else {MARK: mark}


class RunStep(Effect):
    """An effect of a run, with a choice of how to continue if it differs from the recorded one."""

    does_read_finished: bool = False
    """Whether the recorded outcome of a finished run is used, whatever the program does now."""

    def __init__(
        self,
        opened: Opened,
        key: str,
        arguments: Mapping[str, Json],
        *,
        effects: Effects,
        option: str | None = None,
        parent_id: str | None = None,
        on_change: OnChange | None = None,
    ) -> None:
        super().__init__(
            opened.journal,
            opened.course,
            key,
            arguments,
            effects=effects,
            park=opened.park,
            option=option,
            parent_id=parent_id,
            forgiven=opened.forgiven,
        )
        self.opened = opened
        self.on_change: OnChange = opened.on_change or on_change or "stop"
        self.asked = asked(getattr(opened.course, "place", None))

    @override
    async def check_order(self) -> None:
        await StepOrder.of(self.opened).check(self.opened, self.id, self.shown_name, self.on_change, self._effects)

    # ------------------------------------------------------------ what subclasses may override

    async def change(self, intent: Message) -> StepChange:
        """Return how this step differs from a recorded one."""
        what = f"the handler does {self._option!r} otherwise than thread {self.thread_id!r} says, in {self.id!r}"
        return StepChange(what, self.changed_arguments(intent), short_hash(self.arguments), is_input=True)

    def changed_arguments(self, intent: Message) -> list[str]:
        """Return which arguments have changed; not their values, which may be secret."""
        before, after = _arguments(intent), _arguments(self.intent())
        return [f"argument {name!r} has changed" for name in {**before, **after} if before.get(name) != after.get(name)]

    async def check_continues(self, intent: Message, outcome: OptionResultPayload | None, change: StepChange) -> None:
        """Refuse the recorded outcome, if this program cannot use it.

        Raises:
            HistoryMismatchError: it cannot.
        """
        payload = cast("OptionCallPayload", intent.payload)
        if outcome is None and not says_the_same_value(payload.arguments.get("arguments"), dict(self.arguments)):
            raise self.stopped(change, "it was begun and has not ended, so it would be done again with other arguments")
        # An effect that was `once` when it started, or is `once` now, must not run again.
        recorded = payload.arguments.get("effects")
        self._effects = "once" if "once" in (recorded, self._effects) else cast("Effects", recorded)
        self._option = payload.option_name  # an outcome names the option of its intent

    def restart(self) -> None:
        """Take another id: the rows under this one are ignored from now on. It is another effect, with a key of its own."""
        self.skip()
        self.key = self.id

    # ------------------------------------------------------------ common to all steps

    @override
    async def counts(self, intent: Message, outcome: OptionResultPayload | None) -> bool:
        if self.is_same(intent):
            return True
        change = await self.change(intent)
        changes = await ThreadChanges.of(self.opened)
        if changes.is_restarted(self.id):
            self.restart()
            return False
        if self.opened.is_finished:
            return self._reads(change)
        match changes.choice(self.id, change, self.on_change):
            case "stop":
                raise self.stopped(change)
            case "continue":
                await self.check_continues(intent, outcome, change)
                await changes.choose(self.opened, self.id, change, "continue")
                return True
            case "restart":
                if changes.once:
                    reason = f"it cannot restart: {changes.once[0]!r} must not be done twice, and was begun"
                    raise self.stopped(change, reason)
                await changes.choose(self.opened, self.id, change, "restart")
                self.restart()
                return False

    def _reads(self, change: StepChange) -> bool:
        """Return whether the outcome of a finished run is used, although the program has changed."""
        if self.on_change == "continue" or (self.does_read_finished and not change.is_input):
            return True
        raise self.stopped(change)

    @override
    async def check_parked(self) -> None:
        records = await self.journal.ledger.by_invocation(park_id(self.id), thread_id=self.thread_id)
        rows = [record.message.payload for record in records if record.message.lane == "effect"]
        if len(rows) == 1 and isinstance(rows[0], OptionCallPayload):
            raise self.waiting(str(rows[0].arguments.get("reason")))

    @override
    async def parked(self, reason: str) -> NoReturn:
        await self.check_parked()  # the first reason explains the failure
        try:
            await super().parked(reason)
        except ParkedError:
            raise self.waiting(reason) from None

    def waiting(self, reason: str) -> ParkedError:
        """Return the error of a step that waits for a person, with the command that settles it."""
        command = self._command("--result JSON | --error TEXT | --retry")
        return ParkedError(f"{reason}; find out, say it with `{command}`, and start the program again", self.course.to)

    def explain(self, error: Exception) -> None:
        """Add instructions to the error of a step that must not be repeated: how a person can allow a repetition."""
        is_other = isinstance(error, DeliveryError | LedgerError) and not isinstance(error, EffectFailedError)
        if self._effects == "once" and not is_other:
            command = self._command("--retry")
            error.add_note(
                f"The call is recorded as failed. If the run ends with it, `{command}` lets the next start repeat it."
            )

    def _command(self, options: str) -> str:
        return command_line(self.journal.ledger, "settle", self.thread_id, self.id, options=options)

    def stopped(self, change: StepChange, refusal: str | None = None) -> HistoryMismatchError:
        """Return the error that stops the run."""
        return stopped_error(self.opened, change, refusal)


def _arguments(intent: Message) -> dict[str, Any]:
    """Return the arguments of an effect; for a tool call, the arguments of the tool."""
    found = cast("OptionCallPayload", intent.payload).arguments.get("arguments")
    inner = found.get("arguments") if isinstance(found, JsonObject) else None
    given = inner if isinstance(inner, JsonObject) else found
    return cast("dict[str, Any]", thaw(given)) if isinstance(given, JsonObject) else {}


# ---------------------------------------------------------------- patches


class Patches:
    """The new branches of a program that a run takes, by name."""

    def __init__(self) -> None:
        self._known: dict[str, bool] = {}
        self._lock = Lock()

    async def patched(self, opened: Opened, name: str) -> bool:
        """Return whether a run takes a branch. The first answer is valid for the whole run.

        Raises:
            LedgerError: it could not be read or stored.
        """
        async with self._lock:
            if name not in self._known:
                self._known[name] = await self._decide(opened, name)
            return self._known[name]

    async def _decide(self, opened: Opened, name: str) -> bool:
        mark, journal, thread_id = patch_id(opened.root, name), opened.journal, opened.course.thread_id or ""
        if opened.course.attempt > 1 or journal.has_had_owners(thread_id):
            await journal.settle(thread_id)
            if await journal.ledger.by_correlation(mark, thread_id=thread_id):
                return True
            if opened.is_finished or await _is_behind(opened):
                return False
        await _write(opened, mark, {"type": _PATCHED, "name": name}, about=opened.root)
        return True


async def _is_behind(opened: Opened) -> bool:
    """Whether the run has recorded steps that the program has not reached yet."""
    changes, course = await ThreadChanges.of(opened), opened.course
    reached: Collection[str] = getattr(course, "reached", ())
    return not all(_is_passed(step, reached, course.invocation_id) for step in changes.steps)


def _is_passed(step: str, reached: Collection[str], here: str) -> bool:
    """Whether the program has reached a step, or a step that contains it: the work of a tool that is not called again."""
    while step:
        if base_of(step) in reached and not is_of(here, step):
            return True
        step = parent_of(step)
    return False

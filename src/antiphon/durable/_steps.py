"""Steps: the effects of a run, the order in which a program asks for them, and the new branches of a program.

**Patches.** `LedgerRun.patched` returns whether a run takes a new branch of its program. A run that has already passed that
place does not: it has recorded steps that the program has not reached yet.
"""

from __future__ import annotations

import asyncio
from asyncio import Lock
from collections.abc import Mapping, Sequence
from typing import Any, Final, NoReturn, cast

from typing_extensions import override

from antiphon.durable._changes import StepChange, ThreadChanges, is_of, short_hash, write_about
from antiphon.durable._course import asked, place_of, reached_in, recorded_arguments
from antiphon.durable._history import RecordedStep
from antiphon.durable._opened import OnChange, Opened
from antiphon.errors import DeliveryError, EffectFailedError, HistoryMismatchError, LedgerError, ParkedError
from antiphon.ledger._open import command_line
from antiphon.messages import Json, JsonObject, Message, OptionCallPayload, OptionResultPayload, thaw
from antiphon.messages._keys import base_of, child_id, parent_of, park_id, patch_id
from antiphon.runtime._effects import Effect, Effects
from antiphon.runtime._rows import park_reason, says_the_same_value

_PATCHED: Final = "RUN_PATCHED"


class StepOrder:
    """The order in which a run asks for its recorded steps. It is checked before a step starts.

    The task of a program, or of the function of an effect, does its steps one after the other, so it asks for the recorded
    ones in their order, and for new ones after them. Another order is another program, with a step that was renamed,
    removed or moved.
    Steps of other tasks, such as those of `asyncio.gather`, come in any order. So do steps while an exception ends the work,
    unless it is the recorded outcome of a step: it may come elsewhere in the next attempt. What an agent does next is compared
    by its requests.

    Where the order says nothing, a new step that changes something waits until the program has asked for each recorded one
    that does: it may be one of them under another name, and would be done twice, also if it is idempotent, because its key has
    that name. No recorded step depends on one that was never begun, so each comes, or the run stops. While nobody knows
    whether a step was done that must not be done twice, this holds in the whole run: another
    agent may do the same work instead.
    """

    def __init__(self) -> None:
        self.patience = _PATIENCE
        """Seconds for which a new step waits for recorded ones."""
        self.agents: set[str] = set()
        """The runs of agents that the program has begun in this attempt."""
        self._excused: set[str] = set()
        """The recorded steps that need not be repeated, by a choice that the thread records."""

    async def check(self, opened: Opened, step: str, option: str, on_change: OnChange, effects: Effects) -> None:
        """Refuse a step, if its course has another recorded one at this place."""
        if not opened.recorded.steps or opened.is_finished:
            return
        doubts = [expected for expected in opened.recorded.steps if expected.is_in_doubt]
        if doubts and effects != "none" and all(expected.id != base_of(step) for expected in opened.recorded.steps):
            await self._wait(opened, doubts, step, option, "stop")
        if (place := place_of(opened.course)) is None:
            return
        mark, course = place.mark(), parent_of(child_id(opened.course.invocation_id, "step"))
        same_course = [expected for expected in opened.recorded.steps if expected.course == course]
        for expected in opened.recorded.steps:
            if expected.id == base_of(step):
                return
            if mark is None and expected.course == course and expected.mark is None and not self._is_reached(opened, expected):
                await self._choose(opened, expected, _replaced(opened, expected, step, option), on_change)
        if effects != "none":
            # It may be one of them under another name. Steps of cleaning up replace each other only.
            recorded = [
                expected
                for expected in same_course
                if expected.is_deed and (expected.mark == "unwinding") == (mark == "unwinding")
            ]
            await self._wait(opened, recorded, step, option, on_change)

    async def _wait(
        self, opened: Opened, recorded: Sequence[RecordedStep], step: str, option: str, on_change: OnChange
    ) -> None:
        """Wait until the program has asked for recorded steps, before it starts a new one."""
        loop = asyncio.get_running_loop()
        until, pause = loop.time() + self.patience, _FIRST_PAUSE
        while unreached := [expected for expected in recorded if not self._is_reached(opened, expected)]:
            if loop.time() >= until:
                if unreached[0].is_in_doubt:  # with this error, the end of the run parks it
                    raise _doubted(opened, unreached[0])
                await self._choose(opened, unreached[0], _replaced(opened, unreached[0], step, option), on_change)
            else:
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)

    async def check_end(self, opened: Opened) -> None:
        """Refuse to end a run whose program did not ask for a recorded step."""
        for expected in opened.recorded.steps:
            is_own = expected.course == opened.root and not expected.is_agent and expected.mark != "unwinding"
            if is_own and not self._is_reached(opened, expected):
                what = f"the program ends without {expected.id!r}, which thread {opened.course.thread_id!r} records"
                change = StepChange(what, digest=short_hash([expected.id]))
                await self._choose(opened, expected, change, opened.on_change or "stop")

    def _is_reached(self, opened: Opened, step: RecordedStep) -> bool:
        return step.id in reached_in(opened.course) or step.id in self.agents or step.id in self._excused

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


def _replaced(opened: Opened, recorded: RecordedStep, step: str, option: str) -> StepChange:
    what = f"the program does {option!r} where thread {opened.course.thread_id!r} records {recorded.id!r}"
    return StepChange(f"{what}, in {step!r}", digest=short_hash([recorded.id, step]))


def _doubted(opened: Opened, step: RecordedStep) -> ParkedError:
    options = "--result JSON | --error TEXT | --retry"
    command = command_line(opened.journal.ledger, "settle", opened.course.thread_id or "", step.id, options=options)
    reason = f"nobody knows whether {step.id!r} was done, and it must not be done twice"
    return ParkedError(f"{reason}; find out, say it with `{command}`, and start the program again", opened.course.to)


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


class RunEffect(Effect):
    """An effect of a run: before it starts, its place among the recorded steps is checked."""

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
            forgiven=opened.recorded.forgiven,
        )
        self.opened = opened
        self.on_change: OnChange = opened.on_change or on_change or "stop"
        self.asked = asked(place_of(opened.course))

    @override
    async def check_order(self) -> None:
        await self.opened.share(StepOrder).check(self.opened, self.id, self.shown_name, self.on_change, self._effects)


class RunStep(RunEffect):
    """An effect of a run, with a choice of how to continue if it differs from the recorded one."""

    does_read_finished: bool = False
    """Whether the recorded outcome of a finished run is used, whatever the program does now."""

    # ------------------------------------------------------------ what subclasses may override

    async def change(self, intent: Message) -> StepChange:
        """Return how this step differs from a recorded one."""
        what = f"the handler does {self._option!r} otherwise than thread {self.thread_id!r} says, in {self.id!r}"
        return StepChange(what, self.changed_arguments(intent), short_hash(self.arguments), is_input=True)

    def changed_arguments(self, intent: Message) -> list[str]:
        """Return which arguments have changed; not their values, which may be secret."""
        before, after = _shown_arguments(intent), _shown_arguments(self.intent())
        return [f"argument {name!r} has changed" for name in {**before, **after} if before.get(name) != after.get(name)]

    async def check_continues(self, intent: Message, outcome: OptionResultPayload | None, change: StepChange) -> None:
        """Refuse the recorded outcome, if this program cannot use it."""
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
            if self.on_change == "continue" or (self.does_read_finished and not change.is_input):
                return True
            raise self.stopped(change)
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

    @override
    async def check_parked(self) -> None:
        records = await self.journal.ledger.find(invocation_id=park_id(self.id), thread_id=self.thread_id)
        rows = [record.message for record in records if record.message.lane == "effect"]
        if len(rows) == 1:  # a second one is the person's answer
            raise self.waiting(park_reason(rows[0]))

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


def _shown_arguments(intent: Message) -> dict[str, Any]:
    """Return the arguments of an effect; for a tool call, the arguments of the tool."""
    arguments = recorded_arguments(intent)
    inner = None if arguments is None else arguments.get("arguments")
    return cast("dict[str, Any]", thaw(inner if isinstance(inner, JsonObject) else arguments or JsonObject({})))


# ---------------------------------------------------------------- patches


class Patches:
    """The new branches of a program that a run takes, by name."""

    def __init__(self) -> None:
        self._known: dict[str, bool] = {}
        self._lock = Lock()

    async def patched(self, opened: Opened, name: str) -> bool:
        """Return whether a run takes a branch. The first answer is valid for the whole run."""
        async with self._lock:
            if name not in self._known:
                self._known[name] = await self._decide(opened, name)
            return self._known[name]

    async def _decide(self, opened: Opened, name: str) -> bool:
        mark, journal, thread_id = patch_id(opened.root, name), opened.journal, opened.course.thread_id or ""
        if opened.course.attempt > 1 or journal.has_had_owners(thread_id):
            await journal.settle(thread_id)
            if await journal.ledger.find(correlation_id=mark, thread_id=thread_id):
                return True
            if opened.is_finished or not await self._has_passed_all(opened):
                return False
        await write_about(opened, mark, {"type": _PATCHED, "name": name}, subject=opened.root)
        return True

    @staticmethod
    async def _has_passed_all(opened: Opened) -> bool:
        """Whether the program has reached each recorded step, or one around it: of a tool that is not called again."""
        changes, reached, here = await ThreadChanges.of(opened), reached_in(opened.course), opened.course.invocation_id
        for step in changes.steps:
            place = step
            while place and (base_of(place) not in reached or is_of(here, place)):
                place = parent_of(place)
            if not place:
                return False
        return True

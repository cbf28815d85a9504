"""`antiphon run --team`: a task for the agents of a team file, shown while they are at it."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from antiphon.cli._chains import INTERRUPTED, Seen, Show, check_model, interruptible, program_name, show_result, sum_up
from antiphon.cli._ledger import complaints, with_ledger
from antiphon.cli._screen import fail, note
from antiphon.cli._transcript import brief, call_text

if TYPE_CHECKING:
    from antiphon.ledger import Ledger, Record
    from antiphon.messages import Message, OptionCallPayload, OptionResultPayload
    from antiphon.patterns.cast import Outcome

__all__ = ["Where", "run_team"]

_UNSHOWN = frozenset({"assign_task", "final_result", "invoke_agent"})
"""What agents say by a call: that they ask another, or their answer. It is shown where it arrives."""


@dataclass(frozen=True, slots=True)
class Where:
    """What a team works on, with which model, in which thread of which ledger."""

    files: Path | None
    model: str | None
    thread: str | None
    ledger: str | None


def run_team(team: Path, task: str, where: Where, *, for_programs: bool, is_quiet: bool) -> None:
    """Have a team do a task, print its answer, and exit 1 if it failed, 3 if a person must be asked."""
    from antiphon.messages import current_port  # noqa: PLC0415 (only where threads are run)

    if where.model is not None:
        check_model(where.model)
    thread_id = where.thread or current_port().new_id()
    is_shown = not (for_programs or is_quiet)

    async def work(found: Ledger) -> tuple[Outcome | None, Seen]:
        return await _done(found, team, task, where, thread_id, is_shown=is_shown)

    with complaints():
        outcome, seen = with_ledger(where.ledger, work, create=True)
    if outcome is None:
        note(f"stopped; go on with: {_again(team, task, where, thread_id)}")
        raise typer.Exit(INTERRUPTED)
    show_result(outcome, seen, where.ledger, for_programs=for_programs, is_quiet=is_quiet)


async def _done(
    ledger: Ledger, team: Path, task: str, where: Where, thread_id: str, *, is_shown: bool
) -> tuple[Outcome | None, Seen]:
    """Return what came of a task; None if it was interrupted, and can go on."""
    from antiphon.errors import ParkedError  # noqa: PLC0415 (only where threads are run)
    from antiphon.patterns.team_files import TeamFile, open_team  # noqa: PLC0415
    from antiphon.runtime import Settings  # noqa: PLC0415

    seen = Seen(thread_id, next_commands=("show", "export", "fork"))
    settings = Settings(block_limit=None)  # what is first used is imported then, and nobody else waits
    async with open_team(team, ledger, model=where.model, files=where.files, settings=settings) as pattern:
        if is_shown:
            pattern.system.watch(TeamShow(thread_id, [agent.name for agent in TeamFile.read(team).agents]).take)
        running = asyncio.ensure_future(pattern.run(task, thread_id=thread_id))
        is_interrupted = await _is_interrupted(running)
    if is_interrupted:
        running.cancel()
        await asyncio.wait((running,))
        return None, seen
    try:
        outcome = running.result()
    except ParkedError as exc:
        fail(f"{exc}\nthen go on with: {_again(team, task, where, thread_id)}", code=3)
    await sum_up(ledger, seen)
    seen.models = await _models(ledger, thread_id)
    return outcome, seen


async def _is_interrupted(running: asyncio.Future[Any]) -> bool:
    """Wait until something is done, or for Ctrl-C, and say whether it was that.

    It is not cancelled here, which would be for good: the system ends first, and leaves it open for the next.
    """
    with interruptible() as interrupted:
        stopping = asyncio.ensure_future(interrupted.wait())
        await asyncio.wait((running, stopping), return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
    return not running.done()


async def _models(ledger: Ledger, thread_id: str) -> tuple[str, ...]:
    """Return who was asked, as the journal says it."""
    from antiphon.messages import OptionCallPayload  # noqa: PLC0415

    payloads = [record.message.payload async for record in ledger.read(thread_id) if record.message.lane == "effect"]
    asked: Any = [each.arguments.get("arguments") for each in payloads if isinstance(each, OptionCallPayload)]
    return tuple(dict.fromkeys(str(each["model"]) for each in asked if each and "model" in each and "prompt" in each))


class TeamShow(Show):
    """Shows on stderr who is asked by whom, what they use, and what they say."""

    def __init__(self, thread_id: str, agents: Iterable[str]) -> None:
        super().__init__()
        self._thread_id = thread_id
        self._agents = frozenset(agents)
        self._last = ""

    def take(self, record: Record) -> None:  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]
        """Show one more message, if it says something to people that was not shown just now."""
        if record.message.thread_id != self._thread_id:
            return
        for text, style in self._lines(record.message):
            if text != self._last:
                self.line(text, style)
                self._last = text

    def _lines(self, message: Message) -> Iterator[tuple[str, str]]:
        from antiphon.messages import OptionCallPayload, OptionResultPayload, TextPart  # noqa: PLC0415

        match message.lane, message.payload:
            case "control", OptionCallPayload() if message.to:
                asker = _who(message.policy)
                asked_by = f", asked by {asker}" if asker in self._agents else ""
                yield f"● {_who(message.to[0])}{asked_by}", "bold cyan"
            case "talk", (OptionCallPayload() | OptionResultPayload()) as payload:
                if payload.option_name not in self._agents | _UNSHOWN:  # whom they ask is shown when they are asked
                    yield _tool(message.policy, payload)
            case "talk", _ if message.policy in self._agents:
                for part in message.parts:
                    if isinstance(part, TextPart):
                        yield f"  {message.policy}: {brief(part.text, 300)}", "dim"
            case _:
                pass


def _tool(policy: str, payload: OptionCallPayload | OptionResultPayload) -> tuple[str, str]:
    if payload.kind == "option_call":
        return f"  {policy} → {call_text(payload.option_name, payload.arguments)}", "yellow"
    if payload.is_error:
        return f"  ✗ {payload.option_name}: {brief(payload.error_message)}", "red"
    return f"  ← {payload.option_name}: {brief(payload.result)}", "yellow"


def _who(address: str) -> str:
    """Return whom an address is of, as people say it."""
    return address.partition("/")[2] or address


def _again(team: Path, task: str, where: Where, thread_id: str) -> str:
    """Return the command that goes on where this one was."""
    chosen = {"--files": where.files, "--model": where.model, "--ledger": where.ledger}
    given = [word for name, value in chosen.items() if value is not None for word in (name, str(value))]
    words = shlex.join(["run", "--team", str(team), "--thread", thread_id, *given, task])
    return f"{program_name()} {words}"

"""`antiphon fork`: a branch of a thread, to go another way from some place in it; with another model, if one is named."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from antiphon.cli._chains import ModelOption, QuietOption, check_model, opened, show_result, watched
from antiphon.cli._ledger import JsonOption, LedgerOption, ThreadArgument, known_thread, with_ledger
from antiphon.cli._output import deliver
from antiphon.cli._rows import print_json
from antiphon.cli._screen import fail, note
from antiphon.cli._threads import summary_as_json
from antiphon.messages import Message, OptionCallPayload

if TYPE_CHECKING:
    from antiphon.ledger import Ledger, ThreadSummary
    from antiphon.patterns.postchain import PostChain

__all__ = ["fork"]


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What is to be forked, and where."""

    thread: str
    at: str | None
    at_step: int | None
    into: str | None


def fork(
    thread: ThreadArgument,
    *,
    at: Annotated[
        str | None,
        typer.Option(
            "--at", metavar="PLACE", help="The number of the last shared message, or a phase: share the messages before it."
        ),
    ] = None,
    at_step: Annotated[
        int | None, typer.Option("--at-step", metavar="STEP", help="Share the messages up to the end of this step.")
    ] = None,
    into: Annotated[
        str | None, typer.Option("--into", metavar="NAME", help="The id of the branch; default: a new one.")
    ] = None,
    model: ModelOption = None,
    is_quiet: QuietOption = False,
    for_programs: JsonOption = False,
    ledger: LedgerOption = None,
) -> None:
    """Branch a thread at a message, and print the id of the branch. With --model, continue it."""
    wanted = _Wanted(thread, at, at_step, into)
    if model is not None:
        _go_on(wanted, model, ledger, for_programs=for_programs, is_quiet=is_quiet)
        return
    branch = with_ledger(ledger, partial(_begin, wanted=wanted))
    if for_programs:
        print_json(summary_as_json(branch))
        return
    if not is_quiet:
        _tell(branch, thread)
    deliver(f"{branch.thread_id}\n".encode(), None)


def _go_on(wanted: _Wanted, model: str, ledger: str | None, *, for_programs: bool, is_quiet: bool) -> None:
    """Have the branch go on with another model; from the first phase of the last turn, if no place is named."""
    is_shown = not (is_quiet or for_programs)
    if wanted.at is None and wanted.at_step is None:
        wanted = replace(wanted, at="action")

    async def work(chain: PostChain) -> Any:
        await _check_goes_on(chain.ledger, wanted)
        branch = await _begin(chain.ledger, wanted=wanted)
        if is_shown:
            _tell(branch, wanted.thread)
        seen = await watched(chain, branch.thread_id, partial(chain.resume, branch.thread_id), is_shown=is_shown)
        seen.next_commands = (f"diff {wanted.thread}", "show", "replay")
        return await chain.result(branch.thread_id), seen

    check_model(model)
    result, seen = opened(ledger, work, model=model, thread=wanted.thread)
    show_result(result, seen, ledger, for_programs=for_programs, is_quiet=is_quiet)


def _tell(branch: ThreadSummary, thread: str) -> None:
    closed = branch.messages - (branch.forked_at or 0)
    also = f"; calls that were open there, and are closed in the branch: {closed}" if closed else ""
    note(f"a branch of {thread} after message {branch.forked_at}{also}")


async def _begin(ledger: Ledger, *, wanted: _Wanted) -> ThreadSummary:
    await known_thread(ledger, wanted.thread)
    place = await _place(ledger, wanted)
    try:
        return await ledger.fork(wanted.thread, at=place, at_step=wanted.at_step, into=wanted.into)
    except ValueError as exc:
        fail(str(exc).replace("give at or at_step", "give --at or --at-step"), code=2)


async def _place(ledger: Ledger, wanted: _Wanted) -> int | None:
    """Return the number of the last message that is shared."""
    from antiphon.protocol import PHASES  # noqa: PLC0415 (only where it is used)

    if wanted.at is None or wanted.at.isdecimal():
        return None if wanted.at is None else int(wanted.at)
    if wanted.at not in PHASES:
        fail(f"--at is the number of a message, or one of {', '.join(PHASES)}; not {wanted.at!r}", code=2)
    async for record in ledger.read(wanted.thread, reverse=True):
        if _is_asked_of(record.message, f"{wanted.at}/1"):
            return record.seq - 1
    return fail(f"thread {wanted.thread} has no phase {wanted.at}; `antiphon show` shows what it has", code=2)


def _is_asked_of(message: Message, phase: str) -> bool:
    payload = message.payload
    return isinstance(payload, OptionCallPayload) and payload.option_name == "PROCESS_PHASE" and message.to == (phase,)


async def _check_goes_on(ledger: Ledger, wanted: _Wanted) -> None:
    """Refuse a place from which a thread does not go on by itself."""
    from antiphon.patterns.postchain import LIFE  # noqa: PLC0415 (only where it is used)

    await known_thread(ledger, wanted.thread)
    place = await _place(ledger, wanted)
    life = await ledger.replay(wanted.thread, LIFE.fold(), upto=place)
    if wanted.at_step is None and (life.is_over or life.status in ("none", "created")):
        where = "begun" if life.status in ("none", "created") else life.status
        not_yet = "not yet " if where == "begun" else ""
        fail(f"there, the thread is {not_yet}{where}: name a place with --at from which it goes on, such as a phase", code=2)

"""What waits for a person: `antiphon approvals`, `approve`, `deny`, `parked` and `settle`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from antiphon import service
from antiphon.cli._ledger import JsonOption, LedgerOption, ThreadArgument, with_ledger
from antiphon.cli._live import typed
from antiphon.cli._output import deliver, print_json, shown_time
from antiphon.cli._screen import fail, note, open_console, print_indented, print_table, styled
from antiphon.cli._threads import NameOption
from antiphon.errors import NotWaitingError
from antiphon.messages.json_values import write

if TYPE_CHECKING:
    from antiphon.ledger import Ledger
    from antiphon.service import ApprovalValue, ParkedValue

ApprovalArgument: TypeAlias = Annotated[
    str, typer.Argument(metavar="ID", help="The id of the approval: see antiphon approvals.")
]
ReasonOption: TypeAlias = Annotated[
    str | None, typer.Option("--reason", metavar="TEXT", help="The reason, recorded in the thread.")
]


def approvals(*, for_programs: JsonOption = False, ledger: LedgerOption = None) -> None:
    """List the tool calls that wait for an approval, with their arguments and reasons."""
    waiting = with_ledger(ledger, _waiting)
    if for_programs:
        print_json(waiting)
    elif waiting:
        _print_approvals(waiting)
    else:
        note("nothing waits for an approval")


async def _waiting(ledger: Ledger) -> tuple[ApprovalValue, ...]:
    return await service.list_approvals(ledger)


def _print_approvals(waiting: Sequence[ApprovalValue]) -> None:
    rows = [
        (
            each.id,
            each.thread_id,
            each.agent,
            f"{each.tool} {write(dict(each.arguments)).decode()}",  # all arguments: nobody can approve a hidden one
            each.reason,
            shown_time(each.expires_at),
        )
        for each in waiting
    ]
    print_table(open_console(), ("id", "thread", "agent", "call", "why", "until (UTC)"), rows)


def approve(id: ApprovalArgument, *, name: NameOption, reason: ReasonOption = None, ledger: LedgerOption = None) -> None:
    """Approve a waiting call under your name. The thread continues when its program runs again."""
    _answer(id, name, reason, ledger, approved=True)


def deny(id: ApprovalArgument, *, name: NameOption, reason: ReasonOption = None, ledger: LedgerOption = None) -> None:
    """Deny a waiting call under your name. The caller gets the reason."""
    _answer(id, name, reason, ledger, approved=False)


def _answer(id: str, name: str, reason: str | None, ledger: str | None, *, approved: bool) -> None:
    async def work(found: Ledger) -> ApprovalValue:
        try:
            return await service.answer_approval(found, id, principal=name, approved=approved, reason=reason)
        except NotWaitingError as exc:
            waits = await service.open_approval(found, id) is not None  # then this person may not answer it
            fail(str(exc) if waits else f"{exc}; `{typed(ledger, 'approvals')}` lists those that wait")

    given = with_ledger(ledger, work)
    word, may = ("approved", "may") if approved else ("denied", "may not")
    note(f"{word}: {given.agent} {may} call {given.tool} in thread {given.thread_id}")
    deliver(f"{given.thread_id}\n".encode(), None)


# ---------------------------------------------------------------- parked calls


def parked(*, for_programs: JsonOption = False, ledger: LedgerOption = None) -> None:
    """List parked calls: those that may have run and must not run twice, and messages that failed too often."""
    found = with_ledger(ledger, _parked)
    if for_programs:
        print_json(found)
    elif found:
        _print_parked(found, ledger)
    else:
        note("nothing is parked")


async def _parked(ledger: Ledger) -> tuple[ParkedValue, ...]:
    return await service.list_parked(ledger)


def _print_parked(found: Sequence[ParkedValue], ledger: str | None) -> None:
    console = open_console()
    for each in found:
        console.print(styled(f"{each.thread_id}  {each.invocation_id}", "heading"), soft_wrap=True)
        began = "" if each.began_at is None else f", begun {shown_time(each.began_at)} UTC"
        print_indented(console, styled(f"{each.option}{began}: {each.reason}"), "  ")
        if each.arguments:
            print_indented(console, styled(write(each.arguments).decode()), "  ")
    command = typed(ledger, "settle", "THREAD", "INVOCATION")
    note(f"find out the outcome of each, then: {command} --result JSON | --error TEXT | --retry")


def settle(
    thread: ThreadArgument,
    invocation: Annotated[str, typer.Argument(metavar="INVOCATION", help="The id of the parked call: see antiphon parked.")],
    *,
    result: Annotated[
        str | None, typer.Option("--result", metavar="JSON", help="The call succeeded, with this result.")
    ] = None,
    error: Annotated[str | None, typer.Option("--error", metavar="TEXT", help="The call failed, with this error.")] = None,
    retry: Annotated[
        bool, typer.Option("--retry", help="The call did not run, or its failure ended the run: it may start again.")
    ] = False,
    ledger: LedgerOption = None,
) -> None:
    """Record the outcome of a parked call. Its program continues the thread, now or when it runs again."""
    if sum((result is not None, error is not None, retry)) != 1:
        fail("give one of --result JSON, --error TEXT or --retry", code=2)
    value = None if result is None else _read(result)
    given: dict[str, Any] = {"thread": thread, "invocation": invocation, "result": value, "error": error, "retry": retry}
    work = partial(_settle, parked=typed(ledger, "parked"), **given)
    pattern = with_ledger(ledger, work)
    also = f"; a paused thread continues with `{typed(ledger, 'resume', thread)}`" if pattern == "postchain" else ""
    done = "may start again" if retry else "is settled"
    note(f"{invocation} {done}; the thread continues in its program, now or when that runs again{also}")


def _read(result: str) -> Any:
    try:
        return json.loads(result)  # orjson reads large integers as floats
    except json.JSONDecodeError as exc:
        fail(f"--result is JSON; a text needs quotes: {exc}", code=2)


async def _settle(ledger: Ledger, *, parked: str, thread: str, invocation: str, **outcome: Any) -> str | None:
    try:
        return await service.settle_call(ledger, thread, invocation, **outcome)
    except NotWaitingError as exc:
        fail(f"{exc}; `{parked}` lists what is")

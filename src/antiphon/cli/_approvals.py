"""What waits for a person: `antiphon approvals`, `approve`, `deny`, `parked` and `settle`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from antiphon import service
from antiphon.cli._ledger import JsonOption, LedgerOption, ThreadArgument, with_ledger
from antiphon.cli._live import typed
from antiphon.cli._output import deliver, print_json, print_list, shown_time
from antiphon.cli._screen import fail, note, open_console, print_indented, styled
from antiphon.cli._threads import NameOption
from antiphon.errors import NotWaitingError
from antiphon.messages._json_values import write

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
    headings = ("id", "thread", "agent", "call", "why", "until (UTC)")
    waiting = with_ledger(ledger, service.list_approvals)
    print_list(waiting, headings, _row, for_programs=for_programs, otherwise="nothing waits for an approval")


def _row(approval: ApprovalValue) -> tuple[str, ...]:
    call = f"{approval.tool} {write(dict(approval.arguments)).decode()}"  # all arguments: nobody can approve a hidden one
    return approval.id, approval.thread_id, approval.agent, call, approval.reason, shown_time(approval.expires_at)


def approve(id: ApprovalArgument, *, name: NameOption, reason: ReasonOption = None, ledger: LedgerOption = None) -> None:
    """Approve a waiting call under your name. The thread continues when its program runs again."""
    _answer(id, name, reason, ledger, approved=True)


def deny(id: ApprovalArgument, *, name: NameOption, reason: ReasonOption = None, ledger: LedgerOption = None) -> None:
    """Deny a waiting call under your name. The caller gets the reason."""
    _answer(id, name, reason, ledger, approved=False)


def _answer(id: str, name: str, reason: str | None, ledger: str | None, *, approved: bool) -> None:
    async def work(opened: Ledger) -> ApprovalValue:
        try:
            return await service.answer_approval(opened, id, principal=name, approved=approved, reason=reason)
        except NotWaitingError as exc:
            waits = await service.open_approval(opened, id) is not None  # then this person may not answer it
            fail(str(exc) if waits else f"{exc}; `{typed(ledger, 'approvals')}` lists those that wait")

    answered = with_ledger(ledger, work)
    word, may = ("approved", "may") if approved else ("denied", "may not")
    note(f"{word}: {answered.agent} {may} call {answered.tool} in thread {answered.thread_id}")
    deliver(f"{answered.thread_id}\n".encode(), None)


# ---------------------------------------------------------------- parked calls


def parked(*, for_programs: JsonOption = False, ledger: LedgerOption = None) -> None:
    """List parked calls: those that may have run and must not run twice, and messages that failed too often."""
    calls = with_ledger(ledger, service.list_parked)
    if for_programs:
        print_json(calls)
    elif calls:
        _print_parked(calls, ledger)
    else:
        note("nothing is parked")


def _print_parked(calls: Sequence[ParkedValue], ledger: str | None) -> None:
    console = open_console()
    for call in calls:
        console.print(styled(f"{call.thread_id}  {call.invocation_id}", "heading"), soft_wrap=True)
        began = "" if call.began_at is None else f", begun {shown_time(call.began_at)} UTC"
        print_indented(console, styled(f"{call.option}{began}: {call.reason}"), "  ")
        if call.arguments:
            print_indented(console, styled(write(call.arguments).decode()), "  ")
        # Not wrapped and quoted for a shell: ids are long, and those of threads may have spaces.
        console.print(styled(f"  {typed(ledger, 'settle', call.thread_id, call.invocation_id)}"), soft_wrap=True)
    note("find out the outcome of each, then add --result JSON, --error TEXT or --retry to its command")


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

    async def record(opened: Ledger) -> str | None:
        try:
            return await service.settle_call(opened, thread, invocation, result=value, error=error, retry=retry)
        except NotWaitingError as exc:
            fail(f"{exc}; `{typed(ledger, 'parked')}` lists what is")

    pattern = with_ledger(ledger, record)
    hint = f"; a paused thread continues with `{typed(ledger, 'resume', thread)}`" if pattern == "postchain" else ""
    state = "may start again" if retry else "is settled"
    note(f"{invocation} {state}; the thread continues in its program, now or when that runs again{hint}")


def _read(result: str) -> Any:
    try:
        return json.loads(result)  # orjson reads large integers as floats
    except json.JSONDecodeError as exc:
        fail(f"--result is JSON; a text needs quotes: {exc}", code=2)

"""`antiphon check --flow`: whether a conversation went as a flow says it should, and which message first did not."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import orjson
import typer

from antiphon.cli._input import read_file
from antiphon.cli._named import find_conversation
from antiphon.cli._output import deliver
from antiphon.cli._screen import fail, open_console, visible
from antiphon.messages.json_values import write

if TYPE_CHECKING:
    from antiphon.protocol.flows import Flow, Verdict

__all__ = ["FlowOption", "check_flow"]

FlowOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--flow",
        metavar="NAME-OR-FILE",
        help="Check by a flow, not the rules: its name, or a .json file. FILE may be a thread.",
    ),
]


def check_flow(name: str, flow: str, source: str | None, ledger: str | None, *, for_programs: bool) -> None:
    """Say whether a file or a thread went as a flow says; exit 1 if not."""
    judge = _find(flow)
    conversation = find_conversation(name, source, ledger)
    watch = judge.watch()
    all(watch.takes(message) for message in conversation)
    if for_programs:
        deliver(write(_as_json(name, judge, watch.verdict), orjson.OPT_INDENT_2) + b"\n", None)
    else:
        _print(name, judge, watch.verdict, watch.concerned)
    if not watch.verdict.conforms:
        raise typer.Exit(1)


def _find(name: str) -> Flow:
    from antiphon.protocol.flows import find_flow, read_flow  # noqa: PLC0415 (only where a flow is used)

    try:
        return read_flow(read_file(Path(name)).value) if name.endswith(".json") else find_flow(name)
    except ValueError as exc:
        fail(f"--flow {name}: {exc}", code=2)


def _print(name: str, flow: Flow, verdict: Verdict, concerned: int) -> None:
    console = open_console()
    expected = "; or ".join(verdict.expected) or "nothing more"
    if verdict.message is not None:
        about = f"{name}: message {verdict.position}: it is not what {flow.name} says should come (id {verdict.message.id})"
        console.print(visible(about), soft_wrap=True, markup=False, highlight=False)
        console.print(visible(f"    expected: {expected}"), soft_wrap=True, markup=False, highlight=False)
        return
    end = "It is complete." if verdict.state == "complete" else f"It is on its way; next: {expected}"
    about = f"{name}: conforms to {flow.name}, in {concerned} messages. {end}"
    console.print(visible(about), soft_wrap=True, markup=False, highlight=False)


def _as_json(name: str, flow: Flow, verdict: Verdict) -> dict[str, Any]:
    return {
        "file": name,
        "flow": flow.name,
        "state": verdict.state,
        "position": verdict.position,
        "message_id": None if verdict.message is None else verdict.message.id,
        "expected": list(verdict.expected),
    }

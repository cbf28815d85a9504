"""`antiphon check`: the problems of a conversation, like a linter; or whether it follows a flow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer
from rich.text import Text

from antiphon.checks import Finding
from antiphon.checks import check as findings_of
from antiphon.cli._input import (
    FileArgument,
    ForOption,
    FromOption,
    dialect_of,
    find_conversation,
    read_conversation,
    read_file,
    target_of,
)
from antiphon.cli._ledger import LedgerOption
from antiphon.cli._output import deliver, print_json
from antiphon.cli._screen import fail, open_console
from antiphon.service import visible

if TYPE_CHECKING:
    from antiphon.protocol.flows import Flow, Verdict

_STYLES = {"error": "bold red", "warning": "yellow"}

FlowOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--flow",
        metavar="NAME-OR-FILE",
        help="Check by a flow, not the rules: its name, or a .json file. FILE may be a thread.",
    ),
]


class Format(StrEnum):
    """The output format."""

    text = "text"
    json = "json"
    github = "github"


def check(
    file: FileArgument,
    *,
    target: ForOption = None,
    source: FromOption = None,
    form: Annotated[Format, typer.Option("--format", help="The output format.")] = Format.text,
    flow: FlowOption = None,
    ledger: LedgerOption = None,
) -> None:
    """List the problems of a conversation, and what a provider would answer. Exit 1 if a provider would refuse it."""
    if flow is not None:
        check_flow(str(file), flow, source, ledger, for_programs=form == Format.json)
        return
    if ledger is not None:
        fail("--ledger goes with --flow; to check a thread by the rules, `antiphon export` it", code=2)
    given = read_file(file)
    dialect = dialect_of(given, source)
    findings = findings_of(read_conversation(given, dialect), target_of(dialect, target))
    match form:
        case Format.text:
            _print(given.name, findings, target_of(dialect, target))
        case Format.json:
            _print_json(given.name, findings)
        case Format.github:  # pragma: no branch (there is no other)
            _print_github(given.name, findings)
    if any(finding.severity == "error" for finding in findings):
        raise typer.Exit(1)


# ---------------------------------------------------------------- for people


def _print(name: str, findings: Sequence[Finding], target: str | None) -> None:
    console = open_console()
    for finding in findings:
        for line in _lines(name, finding):
            console.print(line, soft_wrap=True)
    console.print(Text(_summary(findings, target)), soft_wrap=True)


def _lines(name: str, finding: Finding) -> Iterator[Text]:
    place = f"{name}:" if finding.position is None else f"{name}: message {finding.position}:"
    about = "" if finding.message_id is None else f" (id {finding.message_id})"
    severity = Text(finding.severity, style=_STYLES[finding.severity])
    problem = visible(f": {finding.problem}{about}")  # one line, also if a message has line ends in it
    yield Text.assemble((visible(place), "heading"), f" {finding.code} ", severity, problem)
    yield Text(f"    {finding.answer}")
    yield Text(f"    help: {finding.hint}", style="aside")


def _summary(findings: Sequence[Finding], target: str | None) -> str:
    aim = "" if target is None else f" for {target}"
    if not findings:
        return f"Nothing is wrong{aim}."
    severities = [finding.severity for finding in findings]
    counts = [_counted(severities.count("error"), "error"), _counted(severities.count("warning"), "warning")]
    advice = " `antiphon repair` mends what is refused." if "error" in severities else ""
    return f"Found {' and '.join(filter(None, counts))}{aim}.{advice}"


def _counted(count: int, what: str) -> str:
    return "" if not count else f"{count} {what}" if count == 1 else f"{count} {what}s"


# ---------------------------------------------------------------- for programs


def _print_json(name: str, findings: Sequence[Finding]) -> None:
    print_json([{"file": name, **asdict(finding)} for finding in findings])


def _print_github(name: str, findings: Sequence[Finding]) -> None:
    for finding in findings:
        place = "" if finding.position is None else f"message {finding.position}: "
        properties = f"file={_escaped(name, ':,')},title={finding.code}"
        text = _escaped(f"{place}{finding.problem}. {finding.answer} {finding.hint}")
        deliver(f"::{finding.severity} {properties}::{text}\n".encode(), None)


def _escaped(text: str, also: str = "") -> str:
    """Escape text for GitHub's workflow commands: percent signs, line ends and separators become numbers."""
    return "".join(f"%{ord(letter):02X}" if letter in f"%\r\n{also}" else letter for letter in text)


# ---------------------------------------------------------------- by a flow


def check_flow(name: str, flow: str, source: str | None, ledger: str | None, *, for_programs: bool) -> None:
    """Print whether a file or a thread follows a flow; exit 1 if not."""
    judge = _find_flow(flow)
    conversation = find_conversation(name, source, ledger)
    watch = judge.watch()
    all(watch.takes(message) for message in conversation)
    if for_programs:
        print_json(_verdict_json(name, judge, watch.verdict))
    else:
        _print_verdict(name, judge, watch.verdict, watch.concerned)
    if not watch.verdict.conforms:
        raise typer.Exit(1)


def _find_flow(name: str) -> Flow:
    from antiphon.protocol.flows import find_flow, read_flow  # noqa: PLC0415 (only where a flow is used)

    try:
        return read_flow(read_file(Path(name)).value) if name.endswith(".json") else find_flow(name)
    except ValueError as exc:
        fail(f"--flow {name}: {exc}", code=2)


def _print_verdict(name: str, flow: Flow, verdict: Verdict, concerned: int) -> None:
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


def _verdict_json(name: str, flow: Flow, verdict: Verdict) -> dict[str, Any]:
    return {
        "file": name,
        "flow": flow.name,
        "state": verdict.state,
        "position": verdict.position,
        "message_id": None if verdict.message is None else verdict.message.id,
        "expected": list(verdict.expected),
    }

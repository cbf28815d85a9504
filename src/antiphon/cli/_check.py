"""`antiphon check`: what is wrong with a conversation, as a linter says it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from enum import StrEnum
from typing import Annotated

import orjson
import typer
from rich.text import Text

from antiphon.checks import Finding
from antiphon.checks import check as findings_of
from antiphon.cli._flow import FlowOption, check_flow
from antiphon.cli._input import FileArgument, ForOption, FromOption, dialect_of, read_conversation, read_file, target_of
from antiphon.cli._ledger import LedgerOption
from antiphon.cli._output import deliver
from antiphon.cli._screen import fail, open_console, visible
from antiphon.messages.json_values import write

__all__ = ["check"]

_STYLES = {"error": "bold red", "warning": "yellow"}


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
    problem = visible(f": {finding.problem}{about}")  # one line, whatever was said
    yield Text.assemble((visible(place), "bold"), f" {finding.code} ", severity, problem)
    yield Text(f"    {finding.answer}")
    yield Text(f"    help: {finding.hint}", style="dim")


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
    rows = [{"file": name, **asdict(finding)} for finding in findings]
    deliver(write(rows, orjson.OPT_INDENT_2) + b"\n", None)


def _print_github(name: str, findings: Sequence[Finding]) -> None:
    for finding in findings:
        place = "" if finding.position is None else f"message {finding.position}: "
        properties = f"file={_escaped(name, ':,')},title={finding.code}"
        text = _escaped(f"{place}{finding.problem}. {finding.answer} {finding.hint}")
        deliver(f"::{finding.severity} {properties}::{text}\n".encode(), None)


def _escaped(text: str, also: str = "") -> str:
    """Return text as GitHub's workflow commands have it: percent signs, line ends and separators by their numbers."""
    return "".join(f"%{ord(letter):02X}" if letter in f"%\r\n{also}" else letter for letter in text)

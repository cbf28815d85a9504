"""`antiphon check`: the problems of a conversation, like a linter; or whether it follows a flow."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer
from rich.text import Text

from antiphon.checks import Finding
from antiphon.checks import check as findings_of
from antiphon.cli._input import (
    EachLineOption,
    FileArgument,
    FileContent,
    ForOption,
    FromOption,
    dialect_of,
    find_conversation,
    read_conversations,
    read_file,
    target_of,
)
from antiphon.cli._ledger import LedgerOption
from antiphon.cli._output import deliver, print_json
from antiphon.cli._screen import fail, open_console, print_indented
from antiphon.dialects import places
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
    each_line: EachLineOption = False,
    form: Annotated[Format, typer.Option("--format", help="The output format.")] = Format.text,
    flow: FlowOption = None,
    ledger: LedgerOption = None,
) -> None:
    """List the problems of a conversation, with the error that a provider returns. Exit 1 if a provider refuses it."""
    if flow is not None:
        if each_line:
            fail("--each-line goes without --flow", code=2)
        check_flow(str(file), flow, source, ledger, for_programs=form == Format.json)
        return
    if ledger is not None:
        fail("--ledger goes with --flow; to check a thread by the rules, `antiphon export` it", code=2)
    content = read_file(file)
    dialect = dialect_of(content.each_line()[0] if each_line else content, source)
    aim = target_of(dialect, target)
    findings = [
        placed
        for part, conversation in read_conversations(content, dialect, each_line=each_line)
        for placed in _placed(part, dialect, findings_of(conversation, aim))
    ]
    match form:
        case Format.text:
            again = "antiphon repair" if str(file) == "-" else _repair(file, source, target, each_line=each_line)
            _print(findings, aim, again)
        case Format.json:
            print_json([placed.to_json() for placed in findings])
        case Format.github:  # pragma: no branch (there is no other)
            _print_github(findings)
    if any(placed.finding.severity == "error" for placed in findings):
        raise typer.Exit(1)


@dataclass(frozen=True, slots=True)
class _Placed:
    """A finding, and where its message is in the file."""

    finding: Finding
    file: FileContent
    path: Sequence[str | int] | None
    """The path of the message in the JSON; None if the finding is about the whole, or the dialect cannot say it."""
    line: int | None

    @property
    def where(self) -> str:
        """The place for people: the path, and the line."""
        line = "" if self.line is None else f"line {self.line}"
        if self.file.lines:
            return line
        return ", ".join(filter(None, (self._message, line) if self.file.number is None else (line, self._message)))

    @property
    def _message(self) -> str:
        match self.path:
            case None:
                return "" if self.finding.position is None else f"message {self.finding.position}"
            case (int() as place,):
                return f"message {place}"
            case path:
                return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path).removeprefix(".")

    def to_json(self) -> dict[str, Any]:
        path = None if self.path is None else list(self.path)
        return {"file": self.file.name, **asdict(self.finding), "path": path, "line": self.line}


def _placed(content: FileContent, dialect: str, findings: Sequence[Finding]) -> Iterator[_Placed]:
    paths = places(content.value, dialect) if any(finding.position is not None for finding in findings) else ()
    for finding in findings:
        path = paths[finding.position] if paths and finding.position is not None else None
        yield _Placed(finding, content, path, content.number if path is None else content.line_of(path))


# ---------------------------------------------------------------- for people


def _repair(file: Path, source: str | None, target: str | None, *, each_line: bool) -> str:
    """Return the command that repairs a file for the same provider."""
    options = [word for name, value in (("--from", source), ("--for", target)) if value is not None for word in (name, value)]
    return shlex.join(["antiphon", "repair", str(file), *options, *["--each-line"] * each_line])


def _print(findings: Sequence[_Placed], target: str | None, repair: str) -> None:
    console = open_console()
    for placed in findings:
        for margin, line in _lines(placed):
            print_indented(console, line, margin)
    print_indented(console, Text(_summary([placed.finding for placed in findings], target, repair)), "")


def _lines(placed: _Placed) -> Iterator[tuple[str, Text]]:
    finding = placed.finding
    place = "".join(f"{piece}: " for piece in (placed.file.name, placed.where) if piece).rstrip()
    identity = "" if finding.message_id is None else f" (id {finding.message_id})"
    severity = Text(finding.severity, style=_STYLES[finding.severity])
    problem = visible(f": {finding.problem}{identity}")  # one line, also if a message has line ends in it
    yield "", Text.assemble((visible(place), "heading"), f" {finding.code} ", severity, problem)
    yield "    ", Text(finding.answer)
    yield "    ", Text(f"help: {finding.hint}", style="aside")


def _summary(findings: Sequence[Finding], target: str | None, repair: str) -> str:
    aim = "" if target is None else f" for {target}"
    if not findings:
        return f"Nothing is wrong{aim}."
    severities = [finding.severity for finding in findings]
    counts = [_counted(severities.count("error"), "error"), _counted(severities.count("warning"), "warning")]
    advice = f" `{visible(repair)}` fixes errors." if "error" in severities else ""
    return f"Found {' and '.join(filter(None, counts))}{aim}.{advice}"


def _counted(count: int, what: str) -> str:
    return "" if not count else f"{count} {what}" if count == 1 else f"{count} {what}s"


# ---------------------------------------------------------------- for programs


def _print_github(findings: Sequence[_Placed]) -> None:
    for placed in findings:
        finding = placed.finding
        place = f"{placed.where}: " if placed.where else ""
        line = "" if placed.line is None else f",line={placed.line}"
        properties = f"file={_escaped(placed.file.name, ':,')}{line},title={finding.code}"
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
        text = f"{name}: message {verdict.position} does not fit the flow {flow.name} (id {verdict.message.id})"
        print_indented(console, Text(visible(text)), "")
        print_indented(console, Text(visible(f"expected: {expected}")), "    ")
        return
    end = "It is complete." if verdict.state == "complete" else f"It is on its way; next: {expected}"
    text = f"{name}: conforms to {flow.name}, in {concerned} messages. {end}"
    print_indented(console, Text(visible(text)), "")


def _verdict_json(name: str, flow: Flow, verdict: Verdict) -> dict[str, Any]:
    return {
        "file": name,
        "flow": flow.name,
        "state": verdict.state,
        "position": verdict.position,
        "message_id": None if verdict.message is None else verdict.message.id,
        "expected": list(verdict.expected),
    }

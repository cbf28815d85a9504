"""Three programs, each with antiphon, DBOS and LangGraph, killed, sent twice and deployed anew: `make compare`.

Each program is a process of its own, on a database of its own. What is counted is what the world outside has seen: requests
to models, and payments. The tables go to the standard output; with `--write PAGE`, between the marks of the page.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

HERE = Path(__file__).parent
PEERS = ("antiphon", "dbos", "langgraph")
LONGEST = 60.0
"""Seconds that a process has for its answer. A lease of antiphon takes six."""
OTHER = "Be kind. Say little."


@dataclass
class Stage:
    """A program of a peer, in a folder of its own."""

    program: str
    peer: str
    folder: Path
    database: str | None = None
    notes: list[str] = field(default_factory=list)

    def start(self, role: str = "ask", **surroundings: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, str(HERE / f"{self.program}_{self.peer}.py"), str(self.folder), role]
        if self.database is not None:
            surroundings = {"DATABASE": self.database, **surroundings}
        with (self.folder / "said").open("ab") as said:
            return subprocess.Popen(command, env={**os.environ, **surroundings}, stdout=said, stderr=said)

    def run(self, role: str = "ask", **surroundings: str) -> int | None:
        return self.wait(self.start(role, **surroundings))

    def wait(self, process: subprocess.Popen[bytes]) -> int | None:
        """Return how a process has ended; None if it does not end."""
        try:
            return process.wait(LONGEST)
        except subprocess.TimeoutExpired:
            kill(process)
            self.notes.append(f"no answer within {LONGEST:.0f} s")
            return None

    def together(self, role: str = "ask") -> list[subprocess.Popen[bytes]]:
        """Start two processes, on two servers, that begin at the same moment."""
        processes = [self.start(role, EXECUTOR=name, TOGETHER=role) for name in ("one", "two")]
        while sum(each["event"] == f"ready to {role}" for each in self.events) < len(processes):
            time.sleep(0.05)
        (self.folder / f"go-{role}").touch()
        return processes

    def again(self, role: str = "ask", **surroundings: str) -> None:
        """Start a program again, and do what it asks a person for."""
        self.run(role, **surroundings)
        if self.errors[-1:] == ["HistoryMismatchError"]:
            self.notes.append('stopped (HistoryMismatchError); `on_change="continue"`')
            surroundings["ON_CHANGE"] = "continue"
            self.run(role, **surroundings)
        if self.errors[-1:] == ["ParkedError"]:
            self.notes.append("parked (ParkedError); a person asked the bank: `antiphon settle`")
            self.run("settle")
            self.run(role, **surroundings)

    @property
    def events(self) -> list[dict[str, Any]]:
        path = self.folder / "world"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    @property
    def errors(self) -> list[str]:
        return [each["type"] for each in self.events if each["event"] == "error"]

    def cell(self) -> str:
        """Return what has happened, for a table."""
        events = self.events
        paid = [each["key"] for each in events if each["event"] == "paid"]
        requests = sum(each["event"] == "asked" for each in events)
        twice = f" ({len(paid) - len(set(paid))} of them again, under the same key)" if len(paid) > len(set(paid)) else ""
        payments = f"{len(paid)} payment{'s' if len(paid) != 1 else ''}{twice}"
        answers = sorted({each["text"] for each in events if each["event"] == "answer" and each["text"]})
        known = ("HistoryMismatchError", "ParkedError")  # they are in the notes
        errors = [
            f"{each['role']}: `{each['type']}`" for each in events if each["event"] == "error" and each["type"] not in known
        ]
        prompts = {each["instructions"] for each in events if each["event"] == "asked"}
        changed = ["the new prompt was used"] if OTHER in prompts else []
        said = [f"“{answer}”" for answer in answers if answer != "waiting for a person"]
        return "; ".join([f"{requests} requests, {payments}", *self.notes, *changed, *errors, *(said or ["no answer"])])


@contextmanager
def postgres(folder: Path) -> Iterator[str | None]:
    """Run a PostgreSQL server, for a `with` block; yields its URL, or None if it is not installed."""
    if shutil.which("initdb") is None:
        yield None
        return
    # A server refuses to run as root.
    user = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"] if os.geteuid() == 0 else []
    if user:
        os.chown(folder, 65534, 65534)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    def run(*command: str) -> None:
        subprocess.run([*user, *command], check=True, stdout=subprocess.DEVNULL, cwd="/")

    data = ["-D", str(folder / "data")]
    run("initdb", *data, "-A", "trust", "-U", "postgres", "--no-sync")
    options = f"-p {port} -c listen_addresses=127.0.0.1 -c unix_socket_directories={folder}"
    run("pg_ctl", *data, "-w", "-l", str(folder / "log"), "-o", options, "start")
    try:
        yield f"postgresql://postgres@127.0.0.1:{port}"
    finally:
        run("pg_ctl", *data, "-m", "immediate", "stop")


def kill(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        process.send_signal(signal.SIGKILL)
    process.wait()


# ---------------------------------------------------------------- approval


def approved(stage: Stage) -> None:
    asking = stage.start()
    stage.run("pending")
    stage.run("approve")
    stage.wait(asking)


def killed_while_a_person_thinks(stage: Stage, **more: str) -> None:
    asking = stage.start()
    stage.run("pending")
    kill(asking)
    if stage.peer == "langgraph":  # the person's process goes on with the graph
        stage.run("approve", **more)
        return
    asking = stage.start(**more)
    if stage.peer == "antiphon" and more and stage.wait(asking) is not None:
        stage.notes.append('stopped (HistoryMismatchError); `on_change="continue"`')
        asking = stage.start(**more, ON_CHANGE="continue")
    stage.run("approve")
    stage.wait(asking)


def killed_after_the_refund(stage: Stage) -> None:
    asking = stage.start(KILL_AT="paid refund 42")
    stage.run("pending")
    stage.run("approve", KILL_AT="paid refund 42")
    stage.wait(asking)
    stage.again()
    if not any(each["event"] == "answer" and each["text"] == "I have refunded order 42." for each in stage.events):
        stage.notes.append("approved again")
        stage.run("approve")


def approved_twice(stage: Stage) -> None:
    asking = stage.together()
    stage.run("pending")
    for process in (*stage.together("approve"), *asking):
        stage.wait(process)


# ---------------------------------------------------------------- supervisor and workers


def killed_after_a_purchase(stage: Stage) -> None:
    stage.run(KILL_AT="paid black")
    stage.again()


def taken_over(stage: Stage) -> None:
    stage.run(KILL_AT="paid black", EXECUTOR="one")
    stage.again(EXECUTOR="two")


def asked_twice(stage: Stage) -> None:
    for process in stage.together():
        stage.wait(process)


def deployed_after_a_purchase(stage: Stage) -> None:
    stage.run(KILL_AT="paid black")
    stage.again(INSTRUCTIONS=OTHER)


# ---------------------------------------------------------------- fork onto another model


def forked(stage: Stage) -> None:
    stage.run()
    stage.run("fork")


def killed_in_the_fork(stage: Stage) -> None:
    stage.run()
    stage.run("fork", KILL_AT="asked large")
    stage.again("fork")


def forked_twice(stage: Stage) -> None:
    stage.run()
    for process in stage.together("fork"):
        stage.wait(process)


def deployed_in_the_fork(stage: Stage) -> None:
    stage.run()
    stage.run("fork", KILL_AT="asked large")
    stage.again("fork", INSTRUCTIONS=OTHER)


Scenario = tuple[str, Callable[[Stage], None]]
PROGRAMS: dict[str, tuple[str, Sequence[Scenario]]] = {
    "approval": (
        "Approval",
        (
            ("undisturbed", approved),
            ("`kill -9` while a person thinks", killed_while_a_person_thinks),
            ("`kill -9` after the payment, before its result is recorded", killed_after_the_refund),
            ("the request twice, and the approval twice, at the same time", approved_twice),
            (
                "deploy with a changed prompt while a person thinks",
                lambda stage: killed_while_a_person_thinks(stage, INSTRUCTIONS=OTHER),
            ),
        ),
    ),
    "workers": (
        "Supervisor and workers",
        (
            ("undisturbed", lambda stage: stage.again()),
            ("`kill -9` after a purchase, before its result is recorded", killed_after_a_purchase),
            ("the same, and the request comes again to another server", taken_over),
            ("the request twice, at the same time, to two servers", asked_twice),
            ("deploy with a changed prompt after the kill", deployed_after_a_purchase),
        ),
    ),
    "fork": (
        "Fork onto another model",
        (
            ("undisturbed", forked),
            ("`kill -9` during the request to the other model", killed_in_the_fork),
            ("the fork twice, at the same time", forked_twice),
            ("deploy with a changed prompt after the kill", deployed_in_the_fork),
        ),
    ),
}


def lines_of(program: str, peer: str) -> int:
    """Return how many lines of code a program has."""
    text = (HERE / f"{program}_{peer}.py").read_text()
    return sum(bool(line.strip()) and not line.lstrip().startswith(("#", '"""')) for line in text.splitlines())


def tables(wanted: Sequence[str]) -> str:
    with TemporaryDirectory() as folder, postgres(Path(folder)) as server:
        found = [_table(program, server) for program in PROGRAMS if not wanted or program in wanted]
    names = ("antiphon", "pydantic-ai-slim", "dbos", "langgraph", "langgraph-checkpoint-sqlite")
    versions = ", ".join(f"{name} {version(name)}" for name in names)
    where = "DBOS on PostgreSQL, the others on SQLite" if server else "all on SQLite"
    return "\n\n".join([f"Run on {datetime.now(tz=UTC).date()}: {versions}; {where}.", *found])


def _table(program: str, server: str | None) -> str:
    title, scenarios = PROGRAMS[program]
    rows = [["lines of code", *(str(lines_of(program, peer)) for peer in PEERS)]]
    for name, scenario in scenarios:
        rows.append([name, *(_cell(program, peer, name, scenario, server) for peer in PEERS)])
    head = ["| | antiphon | Pydantic AI on DBOS | LangGraph |", "|---|---|---|---|"]
    return "\n".join([f"### {title}", "", *head, *(f"| {' | '.join(row)} |" for row in rows)])


def _cell(program: str, peer: str, name: str, scenario: Callable[[Stage], None], server: str | None) -> str:
    with TemporaryDirectory() as folder:
        is_on_server = peer == "dbos" and server is not None
        stage = Stage(program, peer, Path(folder), f"{server}/{Path(folder).name}" if is_on_server else None)
        scenario(stage)
        sys.stderr.write(f"{program}, {peer}, {name}: {stage.cell()}\n")
        if os.environ.get("SHOW"):
            sys.stderr.write(f"{json.dumps(stage.events, indent=1)}\n{(stage.folder / 'said').read_text()}\n")
        return stage.cell()


def write(page: Path, text: str) -> None:
    """Put the tables between the marks of a page."""
    before, mark, rest = page.read_text().partition("<!-- tables -->\n")
    _, end, after = rest.partition("<!-- end of tables -->")
    page.write_text(f"{before}{mark}\n{text}\n\n{end}{after}")


if __name__ == "__main__":
    arguments = sys.argv[1:]
    if arguments[:1] == ["--write"]:
        write(Path(arguments[1]), tables(arguments[2:]))
    else:
        sys.stdout.write(f"{tables(arguments)}\n")

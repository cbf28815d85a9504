"""A thread while it runs: a tree on the terminal, plain lines without one, JSON lines for programs.

The tree has a line for each phase or agent, with the time it took and its tools, and below the one at work the words that it
is saying. The last line sums up. Rich draws the tree several times a second, in a thread of the process, also while the event
loop is busy. So the spinner is a sign of life, and everything that is drawn is behind a lock. When the work has stopped, the
tree stays on the screen without the words: the answer follows, once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from threading import RLock
from typing import TYPE_CHECKING, Final, Literal, Protocol, TypeAlias

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from antiphon import service
from antiphon._tasks import beside
from antiphon.cli._output import print_json_line
from antiphon.cli._screen import cut, open_console, shown_on, styled
from antiphon.protocol import PHASES

if TYPE_CHECKING:
    from antiphon.ledger import Ledger
    from antiphon.service import ChainEvent, TeamStep

BranchState: TypeAlias = Literal["waiting", "earlier", "running", "done", "failed"]

_SPINNER: Final = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_FRAMES: Final = 8
"""Pictures a second."""
_WORD_LINES: Final = 3
"""Lines of streamed words."""
_WORDS: Final = 600
"""Characters of streamed words that are kept."""
_NAME: Final = 14
"""Columns of a name, so that the times stand below each other."""
_MARGIN: Final = 2
"""Columns before the mark of a branch at the top."""
_TOOLS: Final = 4
"""Tools that a branch shows while it works; when the thread has stopped, all are shown."""
_LOOK: Final = 0.5
"""Seconds between two looks at what the thread has spent."""
_MARKS: Final[dict[BranchState, tuple[str, str]]] = {
    "waiting": ("·", "aside"),
    "earlier": ("✓", "aside"),
    "done": ("✓", "good"),
    "failed": ("✗", "bad"),
}


class RunView(Protocol):
    """What shows a running thread."""

    thread_id: str | None
    """Known as soon as something has happened."""
    title: str
    """The question or the task."""

    def take(self, event: ChainEvent) -> None:
        """Show an event of a thread of six phases."""
        ...

    def take_step(self, step: TeamStep) -> None:
        """Show a step of a team."""
        ...

    def spent(self, tokens: int, cost: str) -> None:
        """Show what the thread has used so far."""
        ...

    def start(self) -> None:
        """Begin to show."""
        ...

    def stop(self) -> None:
        """Stop showing."""
        ...


def open_view(title: str = "", *, is_quiet: bool = False, as_events: bool = False) -> RunView:
    """Return the view for this command: a tree if stderr is a terminal, else lines; nothing if it is quiet."""
    if as_events:
        return EventView()
    if is_quiet:
        return QuietView()
    console = open_console(stderr=True)
    return TreeView(console, title) if console.is_terminal and not console.is_dumb_terminal else LineView(console)


@asynccontextmanager
async def watching(view: RunView, ledger: Ledger) -> AsyncGenerator[None]:
    """Show a view while the block lasts, with what its thread has used."""

    async def count() -> None:
        while True:
            await asyncio.sleep(_LOOK)
            await _look(view, ledger)

    view.start()
    try:
        async with beside(count()):
            yield
    finally:
        await _look(view, ledger)
        view.stop()


async def _look(view: RunView, ledger: Ledger) -> None:
    summary = None if view.thread_id is None else await ledger.thread(view.thread_id)
    if summary is not None:
        view.spent(summary.input_tokens + summary.output_tokens, f"{summary.cost:f}")


# ---------------------------------------------------------------- without a terminal


class QuietView:
    """Shows nothing."""

    thread_id: str | None = None
    title: str = ""

    def take(self, event: ChainEvent) -> None: ...

    def take_step(self, step: TeamStep) -> None: ...

    def spent(self, tokens: int, cost: str) -> None: ...

    def start(self) -> None: ...

    def stop(self) -> None: ...


class EventView(QuietView):
    """Prints each event as a line of JSON."""

    thread_id: str | None

    def take(self, event: ChainEvent) -> None:
        self.thread_id = event.thread_id
        fields = {"agent": event.phase, "text": event.text, "data": dict(event.data), "seq": event.seq}
        print_json_line({"kind": event.kind, "thread_id": event.thread_id, **fields})

    def take_step(self, step: TeamStep) -> None:
        fields = {"agent": step.agent, "text": step.text, "data": {"id": step.id} if step.id else {}, "seq": step.seq}
        print_json_line({"kind": step.kind, "thread_id": self.thread_id, **fields})


class LineView(QuietView):
    """Prints a line for each phase, agent and tool. Streamed words are left out: the answer follows."""

    thread_id: str | None

    def __init__(self, console: Console) -> None:
        self._console = console
        self._phase: str | None = None

    def take(self, event: ChainEvent) -> None:
        self.thread_id = event.thread_id
        if (phase := _begun(event)) is not None:
            if phase != self._phase:  # a phase that is resumed may not have begun before
                self._line(f"● {phase}", "name")
            self._phase = phase
            return
        match event.kind:
            case "tool_called":
                self._line(f"  → {service.call_text(event.text, event.data)}", "tool")
            case "tool_returned":
                self._line(f"  ← {event.text}: {service.outcome_text(event.data.get('result'))}", "tool")
            case "failed":
                self._line(f"  ✗ {service.outcome_text(event.text)}", "bad")
            case "decided":
                self._line(f"  {decision_text(event)}", "aside")
            case "phase_ended":
                self._phase = None
                self._line(f"  ✓ {event.data['processing_time']:.1f} s  {contributed(event)}".rstrip(), "good")
            case _:
                pass

    def take_step(self, step: TeamStep) -> None:
        match step.kind:
            case "asked":
                by = f", asked by {step.text}" if step.text else ""
                self._line(f"● {step.agent}{by}", "name")
            case "called":
                self._line(f"  {step.agent} → {step.text}", "tool")
            case "returned":
                self._line(f"  ← {step.agent}: {step.text}", "tool")
            case "failed":
                self._line(f"  ✗ {step.agent}: {step.text}", "bad")
            case "said":
                self._line(f"  {step.agent}: {step.text}", "aside")
            case _:
                pass

    def _line(self, text: str, style: str) -> None:
        line = styled(text, style)
        self._console.print(cut(line, self._console.width) if self._console.is_terminal else line, soft_wrap=True)


def _begun(event: ChainEvent) -> str | None:
    """Return the phase that begins with an event, or that continues because the thread is resumed; None if none does."""
    if event.kind == "status" and event.text == "processing":
        return event.data.get("current_phase")
    return event.phase if event.kind == "phase_began" else None


def contributed(event: ChainEvent) -> str:
    """Return what one of the six phases has contributed, in a few words."""
    return service.contribution(event.phase, event.data["output"]) if event.phase in PHASES else ""


def decision_text(event: ChainEvent) -> str:
    """Return the decision of the supervisor about an agent that failed."""
    if event.text != "restart":
        return f"the supervisor decides: {event.text}"
    seconds = event.data.get("retry_after")
    return "it is asked again" if not seconds else f"it is asked again in {seconds:g} s"


# ---------------------------------------------------------------- on the terminal


@dataclass(slots=True)
class _Tool:
    """A call of a tool: what was called, and its outcome."""

    text: str
    outcome: str = ""
    state: BranchState = "running"


@dataclass(slots=True)
class _Branch:
    """A phase or an agent at work on one request."""

    name: str
    state: BranchState = "waiting"
    began: float = 0.0
    seconds: float | None = None
    summary: str = ""
    words: str = ""
    tools: dict[str, _Tool] = field(default_factory=dict[str, _Tool])
    """By the id of the call."""
    branches: list[_Branch] = field(default_factory=list["_Branch"])


class TreeView:
    """Draws a thread as a tree."""

    def __init__(self, console: Console, title: str = "") -> None:
        self.thread_id: str | None = None
        self._console = console
        self.title = title
        self._lock = RLock()
        self._began = console.get_time()
        self._top: list[_Branch] = []
        self._asked: dict[str, _Branch] = {}
        """By the id of the request."""
        self._latest: dict[str, _Branch] = {}
        """By the name, the last branch of an agent."""
        self._unasked: dict[str, _Branch] = {}
        """By the name, the branch of an agent that an earlier process asked."""
        self._phase = ""
        """The phase at work. A tool of a phase that is resumed does not say whose it is."""
        self._used = ""
        self._is_over = False
        self._live = Live(console=console, get_renderable=self.picture, refresh_per_second=_FRAMES, redirect_stdout=False)
        self._shown = ExitStack()

    def start(self) -> None:
        self._began = self._console.get_time()
        self._shown.enter_context(shown_on(self._console, self._live))
        self._console.show_cursor()  # a process that is killed cannot show it again

    def stop(self) -> None:
        with self._lock:
            self._is_over = True
            self._live.transient = not self._top  # nothing has begun: what follows says why
            for branch in self._every():
                self._end(branch, "waiting" if branch.state == "running" else branch.state)
        self._shown.close()

    def spent(self, tokens: int, cost: str) -> None:
        with self._lock:
            money = f" · ${float(cost):.4f}" if float(cost) else ""
            self._used = f" · {tokens:,} tokens{money}" if tokens else ""

    # ------------------------------------------------------------ six phases

    def take(self, event: ChainEvent) -> None:
        with self._lock:
            self.thread_id = event.thread_id
            self._top = self._top or [_Branch(phase) for phase in PHASES]
            if event.kind == "ended" and event.text == "completed":
                for phase_branch in self._top:
                    phase_branch.state = "earlier" if phase_branch.state == "waiting" else phase_branch.state
            elif (phase := _begun(event)) is not None:
                self._begin_phase(phase)
            elif (branch := self._latest.get(event.phase or self._phase)) is not None:
                self._take_in(branch, event)

    def _begin_phase(self, phase: str) -> None:
        self._phase = phase
        ready = ("waiting", "running")  # one that is resumed runs, and may begin only now
        place = next((n for n, branch in enumerate(self._top) if branch.name == phase and branch.state in ready), None)
        if place is None:  # the last phase has chosen another cycle
            place = len(self._top)
            self._top.append(_Branch(phase))
        for branch in self._top[:place]:
            if branch.state == "waiting":  # an earlier process has done it
                branch.state = "earlier"
        self._begin(self._top[place])

    def _take_in(self, branch: _Branch, event: ChainEvent) -> None:
        match event.kind:
            case "text":
                branch.words = (branch.words + event.text)[-_WORDS:]
            case "tool_called":
                branch.words = ""
                branch.tools[f"{event.text} {len(branch.tools)}"] = _Tool(service.call_text(event.text, event.data))
            case "tool_returned":
                _close(branch, f"{event.text}(", service.outcome_text(event.data.get("result")), "done")
            case "failed":
                branch.words = service.outcome_text(event.text)
            case "decided":
                branch.words = f"{branch.words}; {decision_text(event)}"[-_WORDS:]
            case "phase_ended":
                branch.summary = contributed(event)
                self._end(branch, "done")
            case _:
                pass

    # ------------------------------------------------------------ teams

    def take_step(self, step: TeamStep) -> None:
        with self._lock:
            match step.kind:
                case "asked":
                    self._ask(step)
                case "answered":
                    if (branch := self._asked.get(step.id) or self._unasked.get(step.agent)) is not None:
                        self._end(branch, "failed" if step.text else "done")
                case "called":
                    self._branch(step.agent).tools[step.id] = _Tool(step.text)
                case "returned" | "failed":
                    for branch in self._every():
                        if step.id in branch.tools:
                            tool = branch.tools[step.id]
                            tool.outcome, tool.state = step.text, "done" if step.kind == "returned" else "failed"
                case "said" | "words":  # pragma: no branch (there is no other)
                    branch = self._branch(step.agent)
                    branch.words = (step.text if step.kind == "said" else branch.words + step.text)[-_WORDS:]

    def _ask(self, step: TeamStep) -> None:
        branch = _Branch(step.agent)
        above = self._latest.get(step.text)
        (self._top if above is None else above.branches).append(branch)
        self._asked[step.id] = branch
        self._begin(branch)

    def _branch(self, agent: str) -> _Branch:
        """Return the branch of an agent that is at work; one that nobody was seen to ask stands at the top."""
        if agent not in self._latest:
            self._unasked[agent] = _Branch(agent)
            self._top.append(self._unasked[agent])
            self._begin(self._top[-1])
        return self._latest[agent]

    # ------------------------------------------------------------ branches

    def _begin(self, branch: _Branch) -> None:
        branch.state, branch.began = "running", self._console.get_time()
        self._latest[branch.name] = branch

    def _end(self, branch: _Branch, state: BranchState) -> None:
        if branch.state == "running":
            branch.seconds = self._console.get_time() - branch.began
        branch.state, branch.words = state, ""

    def _every(self) -> Iterator[_Branch]:
        waiting = list(self._top)
        while waiting:
            branch = waiting.pop()
            yield branch
            waiting += branch.branches

    # ------------------------------------------------------------ drawing

    def picture(self) -> Group:
        """Return the tree as it is now."""
        with self._lock:
            title = styled(" ".join(self.title.split()), "heading")
            lines = [cut(title, self._console.width)] if title else []
            lines += self._drawn(self._top, "")
            lines.append(Text(f"{self._console.get_time() - self._began:.1f} s{self._used}", "aside"))
            most = self._console.height - 1
            if not self._is_over and len(lines) > most:  # the latest lines are those that change
                hidden = len(lines) - most + 1
                lines = [Text(f"… {hidden} lines above", "aside"), *lines[hidden:]]
            return Group(*lines)

    def _drawn(self, branches: list[_Branch], margin: str) -> Iterator[Text]:
        for number, branch in enumerate(branches):
            is_last = number == len(branches) - 1
            yield self._line(branch, margin + ("└ " if is_last else "├ "))
            below = margin + ("  " if is_last else "│ ")
            yield from self._tools(branch, below)
            yield from self._drawn(branch.branches, below)
            yield from self._words(branch, f"{below}  ")

    def _line(self, branch: _Branch, margin: str) -> Text:
        now = self._console.get_time()
        if branch.state == "running":
            mark, style = _SPINNER[int(now * _FRAMES) % len(_SPINNER)], "name"
        else:
            mark, style = _MARKS[branch.state]
        seconds = now - branch.began if branch.state == "running" else branch.seconds
        took = "done earlier" if branch.state == "earlier" else "" if seconds is None else f"{seconds:5.1f} s"
        name = styled(branch.name, "name" if branch.state == "running" else "aside" if branch.state == "waiting" else "")
        name.pad_right(max(0, _NAME + _MARGIN - len(margin) - name.cell_len))
        line = Text.assemble(
            (margin, "aside"), (mark, style), " ", name, " ", (took, "aside"), (f"  {branch.summary}", "aside")
        )
        return self._fit(line)

    def _tools(self, branch: _Branch, margin: str) -> Iterator[Text]:
        tools = list(branch.tools.values())
        if not self._is_over and len(tools) > _TOOLS:
            yield self._fit(Text(f"{margin}  … {len(tools) - _TOOLS} tools before", "aside"))
            tools = tools[-_TOOLS:]
        for tool in tools:
            mark, style = ("→", "tool") if tool.state == "running" else _MARKS[tool.state]
            room = self._console.width - len(margin) - 4
            text = _cut_call(tool.text, room if not tool.outcome else max(room // 2, room - len(tool.outcome) - 3))
            outcome = Text.assemble((" = ", "aside"), styled(tool.outcome, "bad" if tool.state == "failed" else ""))
            line = Text.assemble((f"{margin}  ", "aside"), (mark, style), " ", text, outcome if tool.outcome else "")
            yield self._fit(line)

    def _words(self, branch: _Branch, margin: str) -> Iterator[Text]:
        if branch.state != "running" or not branch.words.strip():
            return
        words = styled(" ".join(branch.words.split()), "words")
        for line in words.wrap(self._console, max(self._console.width - len(margin), _NAME))[-_WORD_LINES:]:
            yield Text.assemble((margin, "aside"), line)

    def _fit(self, line: Text) -> Text:
        return cut(line, self._console.width)


def _cut_call(text: str, room: int) -> Text:
    """Return a call that fits: a longer one ends after a word, with an ellipsis in its parentheses."""
    call = styled(text, "tool")
    if call.cell_len <= room or not text.endswith(")"):
        return cut(call, room)
    short = cut(call[:-1], room - 1)
    short.append(")")
    return short


def _close(branch: _Branch, begins: str, outcome: str, state: BranchState) -> None:
    """Give the first open call of a tool its outcome."""
    for tool in branch.tools.values():
        if tool.state == "running" and tool.text.startswith(begins):
            tool.outcome, tool.state = outcome, state
            return

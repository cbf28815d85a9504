"""What a person sees in terminals of 80 and 140 columns: kept as pictures in docs/pictures, made from the real output.

`pytest tests/cli/test_pictures.py --update-examples` draws them anew; look at each before you commit it. What is another in
each run (times, ids) is replaced by something of the same width.
"""

import io
import os
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from tests.cli.screens import Screen, Terminal

from antiphon.cli._screen import THEME
from antiphon.cli._view import TreeView
from antiphon.protocol import PHASES
from antiphon.service import ChainEvent, TeamStep, outcome_text

pytest.importorskip("apsw")

ROOT = Path(__file__).parent.parent.parent
PICTURES = ROOT / "docs" / "pictures"
TEA = "# Tea\n\nGreen tea is steeped at 80 degrees for two minutes. Black tea is steeped at 100 degrees for four minutes.\n"
COLUMNS = (80, 140)

_SECONDS = re.compile(r"( *)\b\d+\.\d s\b")
_THREAD = re.compile(r"\bt-[a-z2-7]{16}\b")
_ID = re.compile(r"\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b")
_TIME = re.compile(r"\b\d\d:\d\d(:\d\d)?\b")
_DAY = re.compile(r"\b20\d\d-\d\d-\d\d\b")


def stable(text: str) -> str:
    """Return the text of a screen without what is another in each run."""
    text = _SECONDS.sub(lambda found: "0.4 s".rjust(len(found[0])) if len(found[1]) > 1 else f"{found[1]}0.4 s", text)
    text = _THREAD.sub("t-wvko6qsxfklkjmae", text)
    text = _ID.sub("00000000-0000-7000-8000-000000000000", text)
    text = _DAY.sub("2026-11-17", _TIME.sub(lambda found: "12:00:00"[: len(found[0])], text))
    return text.replace("python -m antiphon", "antiphon          ").replace("antiphon           ", "antiphon ")


def kept(name: str, screen: Screen, title: str, request: pytest.FixtureRequest) -> None:
    """Compare a screen with its picture; with `--update-examples`, draw it."""
    path, drawn = PICTURES / f"{name}-{screen.columns}.svg", screen.picture(title, stable)
    if request.config.getoption("update_examples"):
        path.write_text(drawn)
    is_same = path.read_text() == drawn
    assert is_same, f"{path} shows something else; --update-examples draws it anew:\n{stable(screen.text)}"


def whole_words(screen: Screen, said: str) -> bool:
    """Whether no word of a text is broken on the screen."""
    shown = set(re.split(r"\s+", screen.text))
    return all(word in shown for word in said.split())


@pytest.fixture(autouse=True)
def _terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pictures are those of a terminal that has colours, whatever the tests run in."""
    monkeypatch.setenv("TERM", "xterm-256color")


# ---------------------------------------------------------------- real runs


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "tea.md").write_text(TEA)
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("columns", COLUMNS)
def test_a_run_ends_with_the_tree_the_answer_and_its_sources(
    folder: Path, columns: int, request: pytest.FixtureRequest
) -> None:
    asked = ("run", "How hot is green tea steeped?", "--model", "scripted", "--add", "tea.md")
    with Terminal(*asked, columns=columns, folder=folder) as terminal:
        code, text = terminal.ended()

    assert code == 0
    assert text.count("Tea: Green tea is") == 1  # the answer is there once
    assert re.findall(r"^[├└] ✓ (\w+) +\d+\.\d s", text, re.MULTILINE) == list(PHASES)
    assert "\nSources\n[1] tea.md" in text
    assert whole_words(terminal.screen, "Green tea is steeped at 80 degrees for two minutes.")
    assert "⠋" not in text
    assert max(map(len, text.split("\n"))) <= columns
    kept("run", terminal.screen, 'antiphon run "How hot is green tea steeped?" --add tea.md', request)


@pytest.mark.slow
@pytest.mark.parametrize("columns", COLUMNS)
def test_a_team_ends_with_its_agents_as_a_tree_and_answers_in_prose(
    folder: Path, columns: int, request: pytest.FixtureRequest
) -> None:
    team = ROOT / "examples" / "analyse_csv" / "team.toml"
    with Terminal("run", "--team", team, "How are the sales?", columns=columns, folder=folder) as terminal:
        code, text = terminal.ended()

    assert code == 0
    assert re.search(r"^└ ✓ controller .*\n  └ ✓ analyst .*\n      ✓ csv_columns\(", text, re.MULTILINE)
    answer = text.partition("\n\n")[2]
    assert "• revenue by city: Oslo 2810.1" in answer
    assert "{" not in answer
    kept("team", terminal.screen, "antiphon run --team examples/analyse_csv/team.toml", request)

    with Terminal("threads", columns=columns, folder=folder) as terminal:
        assert "How are the sales?" in terminal.ended()[1]
    kept("threads", terminal.screen, "antiphon threads", request)

    with Terminal("--help", columns=columns, folder=folder) as terminal:
        assert terminal.ended()[0] == 0
    kept("help", terminal.screen, "antiphon --help", request)


@pytest.mark.slow
@pytest.mark.parametrize("columns", COLUMNS)
def test_the_question_and_the_sources_are_shown_once(folder: Path, columns: int, request: pytest.FixtureRequest) -> None:
    asked = ("run", "How hot is green tea steeped?", "--model", "scripted", "--add", "tea.md", "--quiet")
    with Terminal(*asked, columns=columns, folder=folder) as terminal:
        assert terminal.ended()[0] == 0
    with Terminal("show", "last", columns=columns, folder=folder) as terminal:
        _, text = terminal.ended()

    assert text.count("How hot is green tea steeped?\n") == 1
    assert text.count("Sources\n") == 1
    assert text.count("[1] tea.md") == 1
    kept("show", terminal.screen, "antiphon show last", request)


@pytest.mark.slow
def test_ctrl_c_leaves_the_tree_and_the_command_to_go_on(folder: Path) -> None:
    """Typed in the terminal, while a model is thinking."""
    (folder / "hold").touch()
    held = (sys.executable, "-m", "tests.patterns.held_command", "run", "How hot is green tea steeped?", "--model", "scripted")
    where = {"ANTIPHON_TEST_HELD": str(folder), "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    with Terminal(*held, folder=folder, **where) as terminal:
        terminal.until_seen(lambda text: re.search(r"^├ [⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏] action", text, re.MULTILINE) is not None, "a spinner")
        terminal.type("\x03")
        code, text = terminal.ended()

    assert code == 130
    assert "paused; go on with:" in text
    assert "Traceback" not in text
    assert re.search(r"^├ · action +\d+\.\d s$", text, re.MULTILINE)


# ---------------------------------------------------------------- in the middle


class Clock:
    """A clock for drawings: it goes on by a second with each event."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def phase(kind: str, name: str, text: str = "", **data: Any) -> ChainEvent:
    return ChainEvent("t", kind, name, text, data)  # type: ignore[arg-type]


THOUGHT = (
    "The user wants to know how hot the water must be for green tea, and perhaps how long it is steeped. "
    "Nothing in the question is ambiguous, apart from the kind of green tea, which a shop would ask for first."
)
CALLED = [{"name": "knowledge_base"}, {"name": "calculator"}]
FOUND = [{"source": "tea.md", "heading": ["Tea"], "relevance": 0.94}, {"source": "pots.md", "relevance": 0.5}]
SIX: list[ChainEvent] = [
    phase("phase_began", "action"),
    phase("tool_called", "action", "knowledge_base", query="How hot is green tea steeped, and for how long, if good?"),
    phase("tool_returned", "action", "knowledge_base", result="Green tea is steeped at 80 degrees for two minutes."),
    phase("tool_called", "action", "calculator", expression="80 * 9 / 5 + 32"),
    phase("tool_returned", "action", "calculator", result=176),
    phase("phase_ended", "action", processing_time=1.0, output={"tool_calls": CALLED}),
    phase("phase_began", "experience"),
    phase("phase_ended", "experience", processing_time=1.0, output={"citations": FOUND}),
    phase("phase_began", "intention"),
    *(phase("text", "intention", f"{word} ") for word in THOUGHT.split()),
]
TEAM: list[TeamStep] = [
    TeamStep("asked", "editor", "", "1"),
    TeamStep("asked", "desk", "editor", "2"),
    TeamStep("asked", "checker", "desk", "3"),
    TeamStep("called", "checker", 'list_files(pattern="**/*.md")', "c1"),
    TeamStep("returned", "list_files", '["black.md", "green.md"]', "c1"),
    TeamStep("called", "checker", 'check_markdown(path="green.md")', "c2"),
    TeamStep("failed", "check_markdown", "green.md: the file is larger than a megabyte", "c2"),
    TeamStep("answered", "checker", "", "3"),
    TeamStep("asked", "checker", "desk", "4"),
    TeamStep("called", "checker", 'check_markdown(path="black.md")', "c3"),
    TeamStep("words", "checker", "I look at the page about black tea, and at "),
    TeamStep("words", "checker", "the pictures in it."),
]


def drawn_view(columns: int, title: str, events: Iterable[ChainEvent | TeamStep], rows: int = 40) -> tuple[TreeView, Console]:
    clock = Clock()
    sized: dict[str, Any] = {"width": columns, "height": rows, "file": io.StringIO()}
    console = Console(force_terminal=True, theme=THEME, get_time=clock, **sized)
    view = TreeView(console, title)
    for event in events:
        clock.now += 0.7
        view.take(event) if isinstance(event, ChainEvent) else view.take_step(event)
    view.spent(12_345, "0.0213")
    return view, console


def seen(view: TreeView, console: Console) -> list[str]:
    with console.capture() as captured:
        console.print(view.picture())
    screen = Screen(console.width)
    screen.write(captured.get().replace("\n", "\r\n"))
    return screen.text.split("\n")


@pytest.mark.parametrize("columns", COLUMNS)
@pytest.mark.parametrize(
    ("name", "title", "events"),
    [("six-phases", "How hot is green tea steeped?", SIX), ("agents", "Review the pages.", TEAM)],
)
def test_a_thread_at_work_is_a_tree(
    name: str, title: str, events: list[Any], columns: int, request: pytest.FixtureRequest
) -> None:
    view, console = drawn_view(columns, title, events)
    with console.capture() as captured:
        console.print(view.picture())
    screen = Screen(columns)
    screen.write(captured.get().replace("\n", "\r\n"))

    assert max(map(len, screen.lines)) <= columns
    assert "12,345 tokens · $0.0213" in screen.text
    assert whole_words(screen, "which a shop would ask for first." if name == "six-phases" else "the pictures in it.")
    kept(name, screen, title, request)


def test_the_tree_says_what_is_done_what_is_at_work_and_what_is_to_come() -> None:
    view, console = drawn_view(80, "", SIX)
    lines = seen(view, console)

    assert [re.sub(r"^[├└] (.) (\w+) .*", r"\1 \2", line) for line in lines if re.match(r"[├└] . \w", line)][:2] == [
        "✓ action", "✓ experience"
    ]  # fmt: skip
    assert lines[1].startswith("│   ✓ knowledge_base(query=")
    assert lines[1].endswith("= Green tea is steeped at 80 …") or "…" in lines[1]
    assert lines[2] == '│   ✓ calculator(expression="80 * 9 / 5 + 32") = 176'
    assert lines[3].endswith("2 passages found; the best is tea.md > Tea (0.94)")
    assert re.match(r"├ [⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏] intention", lines[4])
    assert [line.split()[1:] for line in lines[-4:-1]] == [["·", "observation"], ["·", "understanding"], ["·", "yield"]]


def test_a_thread_that_goes_on_says_what_was_done_earlier() -> None:
    view, console = drawn_view(80, "", [phase("phase_began", "intention")])

    assert [line.split()[1:] for line in seen(view, console)[:2]] == [
        ["✓", "action", "done", "earlier"], ["✓", "experience", "done", "earlier"]
    ]  # fmt: skip


def test_a_thread_that_another_process_completed_has_no_phase_to_come() -> None:
    """A command that waits for a thread of another process hears only the end."""
    view, console = drawn_view(80, "How hot?", [phase("ended", "", "completed", response="80 degrees")])
    view.stop()
    lines = seen(view, console)

    assert lines[0] == "How hot?"
    assert [line.split()[1:3] for line in lines[1:-1]] == [["✓", name] for name in PHASES]


def test_times_of_agents_below_others_stand_below_each_other() -> None:
    view, console = drawn_view(80, "", TEAM)
    places = {line.index(" s") for line in seen(view, console) if re.search(r"\d\.\d s$", line) and "·" not in line}

    assert len(places) == 1


@pytest.mark.parametrize(
    ("result", "shown"),
    [
        ("It is 80.", "It is 80."),
        ("- one\n- two", "one …"),
        ('[{"id": "kb-1"}, {"id": "kb-2"}]', "2 results"),
        ([{"id": "kb-1"}], "1 result"),
        (["a.md", "b.md"], "a.md, b.md"),
        ({"rows": 75, "columns": {"date": {}, "city": {}}}, "rows: 75; columns: date, city"),
        ({"is_open": True, "found": [[1], [2]]}, "is_open: true; found: 2 results"),
        ([], "nothing"),
        ({}, "nothing"),
        ("[no JSON", "[no JSON"),
        (391, "391"),
    ],
)
def test_the_result_of_a_tool_is_a_few_words(result: Any, shown: str) -> None:
    assert outcome_text(result) == shown


def test_a_second_cycle_of_phases_is_below_the_first() -> None:
    cycle = [
        each for name in PHASES for each in (phase("phase_began", name), phase("phase_ended", name, output={"citations": []}))
    ]
    view, console = drawn_view(80, "", [*cycle, phase("phase_began", "action")])

    assert [line.split()[2] for line in seen(view, console)[:-1]] == [*PHASES, "action"]


@pytest.mark.slow
def test_a_tree_that_is_too_high_shows_its_end_while_it_runs_and_all_of_it_at_the_end() -> None:
    kinds = ("asked", "answered")
    steps = [TeamStep(kind, f"a{number}", "", str(number)) for number in range(50) for kind in kinds]  # type: ignore[arg-type]
    view, console = drawn_view(80, "Many.", steps, rows=20)

    lines = seen(view, console)
    assert (len(lines), lines[0]) == (19, "… 34 lines above")
    view.stop()
    assert len(seen(view, console)) == 52


def test_words_of_a_model_cannot_write_to_the_terminal() -> None:
    steps = [TeamStep("words", "ag\x1b[31ment", "x\x1b]0;y\x07z"), TeamStep("called", "a", "t(\x1b[H)", "1")]
    view, console = drawn_view(80, "a\x1b[2Jb", steps)
    with console.capture() as captured:
        console.print(view.picture())

    assert not re.search(r"\x1b(?!\[[\d;]*m)", captured.get())
    assert "⟨U+001B⟩" in captured.get()

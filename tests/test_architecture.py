"""What holds for the whole house: public names, the top of the package, decisions, files that begin with a sentence."""

import ast
import importlib
import pkgutil
import re
import runpy
import subprocess
import sys
from pathlib import Path
from types import FunctionType

import pytest
from tests.trees import tree_of, trees_with

import antiphon

ROOT = Path(__file__).parent.parent
SOURCES = sorted((ROOT / "src").rglob("*.py"))
PUBLIC = [
    module.name
    for module in pkgutil.walk_packages(antiphon.__path__, "antiphon.")
    if not any(step.startswith("_") for step in module.name.split("."))
]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["antiphon", *PUBLIC])
def test_public_names_are_those_in_all(name: str) -> None:
    """What a public module offers is exactly its `__all__`, and all of it is there."""
    module = importlib.import_module(name)

    if "__all__" in vars(module):  # a lazy package has its names in a stub
        assert list(module.__all__) == sorted(module.__all__, key=_isort_key)
    for each in module.__all__:
        assert getattr(module, each) is not None
    if name != "antiphon":
        origin = "antiphon" if hasattr(module, "__path__") else name  # a module may import what it does not offer
        theirs = {each for each, value in vars(module).items() if str(getattr(value, "__module__", "")).startswith(origin)}
        assert {each for each in theirs if not each.startswith("_")} <= set(module.__all__)


def _isort_key(name: str) -> tuple[int, str]:
    """Constants, classes, functions; each in order: as the formatter sorts them."""
    kind = 0 if name.isupper() else 1 if name[0].isupper() else 2
    return kind, name


@pytest.mark.slow
def test_a_public_name_is_offered_in_one_place() -> None:
    """The top of the package repeats those of the first hour; the service is private, and all that a front door imports."""
    places: dict[tuple[str, int], list[str]] = {}
    for name in PUBLIC:
        module = importlib.import_module(name)
        values = [(each, getattr(module, each)) for each in module.__all__ if name != "antiphon.service"]
        for each, value in values:
            if isinstance(value, type | FunctionType):
                places.setdefault((each, id(value)), []).append(name)

    assert len(places) > 300
    assert [(each, names) for (each, _), names in places.items() if len(names) > 1] == []


def test_the_top_of_the_package_offers_what_users_need() -> None:
    assert set(antiphon.__all__) == {
        "RUNTIME_POLICY",
        "Actor",
        "Citation",
        "Context",
        "Conversation",
        "DataPart",
        "Finding",
        "ForeignPart",
        "Ledger",
        "LedgerDurability",
        "MediaPart",
        "Message",
        "MessageBuilder",
        "OptionCallPayload",
        "OptionResultBuilder",
        "OptionResultPayload",
        "PartsPayload",
        "ReasoningPart",
        "Record",
        "Repaired",
        "System",
        "TextPart",
        "Toolkit",
        "Transition",
        "Usage",
        "check",
        "convert",
        "decode",
        "dumps",
        "encode",
        "handles",
        "ledger_run",
        "loads",
        "model",
        "open_ledger",
        "repair",
    }
    assert dir(antiphon) == sorted(antiphon.__all__)
    with pytest.raises(AttributeError, match="no attribute 'Telegram'"):
        antiphon.Telegram  # noqa: B018


@pytest.mark.slow
def test_the_public_names_are_those_on_record() -> None:
    """A name or a parameter that goes away, or a new one, is a decision: `tools/api.py list > tests/public_names.txt`."""
    found = sorted(runpy.run_path(str(ROOT / "tools" / "api.py"))["names"]())

    assert found == (ROOT / "tests" / "public_names.txt").read_text().splitlines()


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "SECURITY.md", "AGENTS.md"])
def test_links_from_the_root_lead_to_files_and_headings(page: str) -> None:
    """`make docs` checks the links between the pages of docs/."""
    for link in re.findall(r"\]\(([^)#:]+\.md)(#[^)]+)?\)", (ROOT / page).read_text()):
        target, anchor = link
        headings = re.findall(r"^#+ (.+)$", (ROOT / target).read_text(), re.MULTILINE)
        anchors = {"#" + re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
        assert not anchor or anchor in anchors, f"{page}: {target}{anchor}"


@pytest.mark.slow
def test_importing_the_package_imports_nothing_heavy() -> None:
    """`import antiphon` is next to free; the core brings Pydantic and nothing heavier."""
    heavy = ["pydantic_ai", "httpx", "sqlite3", "asyncio", "starlette", "asyncpg", "nats", "opentelemetry"]
    code = f"""
import sys, antiphon
assert "pydantic" not in sys.modules
antiphon.Message
found = [name for name in {heavy} if name in sys.modules]
assert not found, found
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.slow
def test_the_names_that_a_reader_guesses_are_at_the_top_of_the_package() -> None:
    """They are those of `antiphon.agents` and `antiphon.durable`, and are imported when first used."""
    code = """
import sys, antiphon
assert "antiphon.agents" not in sys.modules
from antiphon import LedgerDurability, Toolkit, ledger_run, model
from antiphon import agents, durable
from antiphon.agents import toolkit
assert (LedgerDurability, Toolkit, ledger_run) == (agents.LedgerDurability, toolkit.Toolkit, durable.ledger_run)
assert model("scripted").model_name.startswith("scripted")
assert {"LedgerDurability", "Toolkit", "ledger_run", "model"} <= set(dir(antiphon))
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT / "src")))
def test_a_file_begins_with_what_is_in_it(path: Path) -> None:
    assert ast.get_docstring(tree_of(path))


@pytest.mark.parametrize("path", sorted((ROOT / "src" / "antiphon" / "cli").glob("*.py")), ids=lambda path: path.name)
def test_a_command_calls_the_service_and_no_actor_agent_or_pattern(path: Path) -> None:
    """Not even for type checking, or inside a function."""
    imports = [node for node in ast.walk(tree_of(path)) if isinstance(node, ast.Import | ast.ImportFrom)]
    names = [name for node in imports for name in _names_of(node)]

    below = ("antiphon.runtime.", "antiphon.telemetry.", "antiphon.agents.", "antiphon.patterns.", "antiphon.service._")
    assert [name for name in names if f"{name}.".startswith(below)] == []


def test_a_value_of_the_front_doors_has_one_class() -> None:
    """A class of the server with the fields of one of the service would be its twin: a field is then added in two places."""

    def fields(folder: str) -> dict[frozenset[str], str]:
        classes = [each for each in tree_of(ROOT / f"src/antiphon/{folder}/_values.py").body if isinstance(each, ast.ClassDef)]
        named = [(each.name, [row for row in each.body if isinstance(row, ast.AnnAssign)]) for each in classes]
        return {frozenset(ast.unparse(row.target) for row in rows): name for name, rows in named if len(rows) > 1}

    of_service, of_server = fields("service"), fields("server")
    assert len(of_service) > 20
    assert [(name, of_service[names]) for names, name in of_server.items() if names in of_service] == []


def test_what_reads_and_writes_a_format_is_private_to_its_dialect() -> None:
    """So a format has one reader and one writer: nobody else can begin a second one with the pieces of the first."""
    pattern = re.compile(r"antiphon\.dialects\.(\w+\.)?_\w")
    found = [
        (str(path.relative_to(ROOT)), name)
        for path, tree in trees_with([each for each in SOURCES if "dialects" not in each.parts], "antiphon.dialects")
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in _names_of(node)
        if pattern.match(name)
    ]

    assert found == []


def _names_of(node: ast.Import | ast.ImportFrom) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)]


@pytest.mark.slow
def test_no_code_of_ours_claims_a_thread_without_a_host() -> None:
    """A claim without `by` takes the thread from an owner that lives. It is for a person, and for the check of ledgers."""
    forced = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path, tree in trees_with(SOURCES, "claim")
        if path.name != "_ledger.py" or path.parent.name != "testing"
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "claim"
        if not any(keyword.arg in ("by", None) for keyword in node.keywords)  # `**more` passes on what it was given
    ]

    assert forced == []


@pytest.mark.slow
def test_no_module_imports_itself_in_a_circle() -> None:
    """Not even for type checking. The other figures of `make figures` are reports."""
    tool = runpy.run_path(str(ROOT / "tools" / "figures.py"))
    found = tool["figures"](tool["source_trees"]())

    assert (found["cycles"], found["modules in cycles"]) == (0, 0)


AROUND_THE_SIGNALS = {
    "os.popen",
    "os.posix_spawn",
    "os.posix_spawnp",
    "os.spawnl",
    "os.spawnv",
    "os.spawnve",
    "os.spawnvp",
    "os.system",
    "multiprocessing.Process",
    "signal.SIG_IGN",
    "signal.pthread_sigmask",
}
KEYWORDS = {"preexec_fn", "restore_signals"}
MODULES = {"multiprocessing", "signal"}
IGNORES_A_SIGNAL = {
    "tests/agents/toolkit/hostile_server.py",  # a server that does not stop when it is asked to
    "tests/children.py",  # where it is undone
    "tests/testing/test_habits.py",  # where that is tested
}


@pytest.mark.slow
def test_children_of_tests_start_with_default_signal_handlers() -> None:
    """`tests/children.py` sees to SIGINT, SIGQUIT and SIGTERM, and `subprocess` to SIGPIPE: no test goes around either.

    A child that ignores SIGINT, because the run was started in the background, would never end.
    """
    attributes = {name.partition(".")[2] for name in AROUND_THE_SIGNALS}
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}: {ast.unparse(node)}"
        for path, tree in trees_with(sorted((ROOT / "tests").rglob("*.py")), *attributes, *KEYWORDS, *MODULES)
        if str(path.relative_to(ROOT)) not in IGNORES_A_SIGNAL
        for node in ast.walk(tree)
        if (isinstance(node, ast.Attribute) and node.attr in attributes and ast.unparse(node) in AROUND_THE_SIGNALS)
        or (isinstance(node, ast.keyword) and node.arg in KEYWORDS)
        or (isinstance(node, ast.ImportFrom) and node.module in MODULES)
    ]

    assert found == []


def test_decisions_have_numbers_of_their_own() -> None:
    """Numbered from 1 in the order of merging, without a gap and without a duplicate; each says how it is kept."""
    decisions = sorted((ROOT / "docs" / "adr").glob("[0-9]*.md"))
    numbers = [int(path.name[:4]) for path in decisions if not path.name.startswith("0000")]

    assert numbers == list(range(1, len(numbers) + 1))
    for path in decisions:
        text = path.read_text()
        assert re.match(rf"# {path.name[:4]}: ", text), path
        assert "## How it is kept" in text, path


def test_changelog_fragments_are_of_a_known_kind() -> None:
    for path in (ROOT / "changelog.d").glob("*.md"):
        if not path.name.startswith("_") and path.name != "README.md":
            assert re.fullmatch(r"(\+?[\w-]+)\.(breaking|added|changed|fixed)\.md", path.name), path.name


def test_locked_dependencies_name_no_registry() -> None:
    for path in (ROOT / "requirements.lock", ROOT / "benchmarks" / "requirements.lock"):
        text = path.read_text()
        assert "://" not in text
        assert "--hash=sha256:" in text


def test_no_tool_empties_the_folder_of_ledgers() -> None:
    """`make docs` empties `.cache`, and `make clean` what was made: a ledger is somebody's data."""
    makefile = (ROOT / "Makefile").read_text()
    (folder,) = re.findall(r"^LEDGERS := (\S+)$", makefile, re.MULTILINE)
    (removed,) = re.findall(r"^clean:.*\n\trm -rf (.+)$", makefile, re.MULTILINE)
    assert folder not in {".cache", *removed.split()}
    assert f"{folder}/" in (ROOT / ".gitignore").read_text().split()
    assert set(re.findall(r"sqlite:///(\S+)/\w+\.db", makefile)) == {"$(LEDGERS)"}
    assert not [tool for tool in (ROOT / "tools").glob("*.py") if '".cache"' in tool.read_text()]

"""No stored byte becomes code (S1): by reading the source, and by watching the interpreter while hostile data goes through."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest
from tests.trees import tree_of, trees_with

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "src").rglob("*.py"))
FORBIDDEN_MODULES = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "jsonpickle", "yaml", "copyreg", "runpy", "code"}
FORBIDDEN_CALLS = {"eval", "exec", "compile", "__import__", "breakpoint"}


def imported(tree: ast.AST) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.split(".")[0])
    return found


def is_in_source(name: ast.expr) -> bool:
    """Whether a name is from the source: a text, a look into a constant table, or a text made of these."""
    match name:
        case ast.Constant():
            return True
        case ast.Subscript(value=ast.Name(id=table)):
            return table.strip("_").isupper()
        case ast.JoinedStr(values=pieces):
            return all(map(is_in_source, pieces))
        case ast.FormattedValue(value=piece):
            return is_in_source(piece)
        case _:
            return False


def imports_by_name(tree: ast.AST) -> bool:
    """Whether a module is imported by a name that may be from data."""
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call) and node.args)
    written = {id(call.func) for call in calls if is_in_source(call.args[0])}
    aliases = [alias for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names]
    is_renamed = any(alias.name == "import_module" and alias.asname for alias in aliases)
    uses = (node for node in ast.walk(tree) if "import_module" in (getattr(node, "id", ""), getattr(node, "attr", "")))
    return is_renamed or any(id(node) not in written for node in uses)


@pytest.mark.parametrize(
    "source",
    [
        "import_module(name)",
        "importlib.import_module(row['class'])",
        "load = import_module",
        "from importlib import import_module as load",
        "import_module(f'antiphon.{name}')",
    ],
)
def test_an_import_by_name_is_seen(source: str) -> None:
    assert imports_by_name(ast.parse(source))
    assert not imports_by_name(
        ast.parse("import_module('json'), import_module(_HOME[name]), import_module(f'a.{_HOME[name]}')")
    )


LAZY = "from antiphon._lazy import lazy_names as _lazy_names"
LAZY_FILE = ROOT / "src" / "antiphon" / "_lazy.py"
"""Imports what the tables of other modules say."""
APPS_FILE = ROOT / "src" / "antiphon" / "service" / "_runs.py"
"""Imports an app that a person has typed: see `test_an_app_is_imported_only_by_what_a_person_typed`."""


def _name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else ""


def called(tree: ast.AST) -> set[str]:
    names = (node.func for node in ast.walk(tree) if isinstance(node, ast.Call))
    return {each.id for each in names if isinstance(each, ast.Name)}


@pytest.mark.slow
@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT / "src")))
def test_the_source_has_no_way_from_data_to_code(path: Path) -> None:
    text = path.read_text()
    tree = ast.parse(text)

    assert not imported(tree) & FORBIDDEN_MODULES
    assert not called(tree) & FORBIDDEN_CALLS
    if path not in (LAZY_FILE, APPS_FILE):
        assert "import_module" not in text or not imports_by_name(tree), "only names in the source may be imported"
    assert "lazy_names" not in text.replace("_lazy_names(__name__", "").replace(LAZY, "") or path.name == "_lazy.py"


def test_an_app_is_imported_only_by_what_a_person_typed() -> None:
    """`load_apps` is called by commands only, with the value of an option. Nothing below them has a way to it."""
    callers = [path for path, tree in trees_with(SOURCES, "load_apps") if "load_apps" in called_or_read(tree)]
    assert {path.parent.name for path in callers} <= {"cli"}
    tree = tree_of(APPS_FILE)
    (user,) = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and "import_module" in called(node)]
    assert [node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and user.name in called(node)] == [
        "load_apps"
    ]


def called_or_read(tree: ast.AST) -> set[str]:
    attributes = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    return called(tree) | attributes


@pytest.mark.parametrize(
    "path", sorted((ROOT / "src").rglob("__init__.pyi")), ids=lambda path: str(path.relative_to(ROOT / "src"))
)
def test_a_stub_names_only_modules_of_ours(path: Path) -> None:
    """Names that are imported when first used come from the stub beside the package, which is source."""
    modules = {node.module for node in ast.walk(tree_of(path)) if isinstance(node, ast.ImportFrom)}

    assert modules
    assert all(module is not None and module.startswith("antiphon.") for module in modules)


WATCHED = """
import asyncio, sys, tempfile
from pathlib import Path
from tests.ledger import test_hostile_rows as hostile
from antiphon import loads
from antiphon.errors import AntiphonError
from antiphon.ledger import open_ledger, replay, transitions

def warm_up():
    folder = Path(tempfile.mkdtemp())
    hostile.plant(folder / "ledger.db", hostile.body(hostile.TEXT))
    hostile.with_ledger(folder / "ledger.db", work)

async def work(ledger):
    await ledger.verify()
    await ledger.search("hi there")
    for doing in (replay(ledger, "t"), transitions(ledger, "t"), ledger.fork("t"), ledger.find(invocation_id="x")):
        try:
            await doing
        except AntiphonError:
            pass

warm_up()
seen = []
WATCH = ("pickle.find_class", "exec", "compile", "import", "os.system", "os.exec", "os.posix_spawn", "subprocess", "marshal")

def hook(event, arguments):
    if event.startswith(WATCH):
        seen.append((event, arguments[:1]))

sys.addaudithook(hook)
for name, content in hostile.HOSTILE.items():
    folder = Path(tempfile.mkdtemp())
    hostile.plant(folder / "ledger.db", content)
    hostile.with_ledger(folder / "ledger.db", work)
    try:
        loads(content)
    except AntiphonError:
        pass
assert not seen, seen
eval("1")
assert seen, "the hook sees nothing"
print("watched", len(hostile.HOSTILE))
"""


@pytest.mark.slow
def test_no_hostile_row_makes_the_interpreter_load_or_run_anything() -> None:
    """An audit hook sees every import, compilation, execution and process; and it is shown that it does."""
    done = subprocess.run([sys.executable, "-c", WATCHED], capture_output=True, text=True, check=False, cwd=ROOT)

    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("watched")

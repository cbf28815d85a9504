"""Print how easy the tree is to enter: size of files, imports, cycles, private imports, repeated names, the way of an ask.

`make figures` prints the table that `docs/architecture.md` keeps. Each figure counts what stands in `src/antiphon`:

- **import share**: lines of import statements, of `if TYPE_CHECKING:` and of `__all__`, of all lines.
- **cycles**: groups of modules that import each other, imports for type checking included.
- **private imports**: `from antiphon.x._y import …` in a module outside of the package `antiphon.x`.
- **repeated names**: public class names that two or more modules define; native names of other people's formats aside.
- **files in a journaled ask**: files of the runtime whose functions run, from the call of `ask` in a thread until its answer.
  The ledger and the messages are behind one call each; `-v` lists their files too.
"""

from __future__ import annotations

import ast
import asyncio
import statistics
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import grimp

from antiphon.protocol import Reply, Request
from antiphon.runtime import Actor, Context, System, handles

SOURCE = Path(__file__).parent.parent / "src" / "antiphon"
NATIVE = "dialects"
"""The folder whose subfolders have classes with other people's names."""
SEEDS = {SOURCE / "agents" / "toolkit" / "atlas.py"}
"""Further files whose classes have the names of a seed."""
SEED_NAMES = {(SOURCE / "protocol" / "_messages.py", "Message")}
"""Single classes that have the name of a seed: Choir's actors call the message on the wire `Message`, and programs that were
written for it import that name from `antiphon.protocol`. The other classes of the file have names of our own, and count."""


def main() -> None:
    trees = source_trees()
    for name, value in figures(trees).items():
        print(f"| {name} | {value} |")
    if "-v" in sys.argv:
        print_details(trees)


class Tree:
    """A file as a syntax tree; its nodes are walked through once, which takes longer than to parse it."""

    def __init__(self, path: Path) -> None:
        self.module = ast.parse(path.read_text())
        self.nodes = list(ast.walk(self.module))


def source_trees() -> dict[Path, Tree]:
    return {path: Tree(path) for path in sorted(SOURCE.rglob("*.py"))}


def figures(trees: dict[Path, Tree]) -> dict[str, float]:
    """Return all figures by name. They report; only the cycles are tested (`tests/test_architecture.py`)."""
    lengths = [path.read_text().count("\n") for path in trees]
    loops = cycles()
    return {
        "files": len(trees),
        "median lines of a file": round(statistics.median(lengths)),
        "import share in %": round(100 * sum(map(import_lines, trees.values())) / sum(lengths), 1),
        "cycles": len(loops),
        "modules in cycles": sum(map(len, loops)),
        "private imports across packages": len(list(private_imports(trees))),
        "repeated public class names": len(repeated_names(trees)),
        "files of the runtime in a journaled ask": sum(name.startswith("runtime/") for name in asyncio.run(files_in_an_ask())),
        "`Any` per 1,000 code lines": round(1000 * sum(map(anys, trees.values())) / sum(map(code_lines, trees.values()))),
    }


def print_details(trees: dict[Path, Tree]) -> None:
    private = private_imports(trees)
    print("\ncycles:", *(" ".join(sorted(cycle)) for cycle in cycles()), sep="\n  ")
    print("\nprivate imports:", *(f"{module} -> {found}" for module, found in sorted(private)), sep="\n  ")
    print("\nrepeated names:", *(f"{name}: {' '.join(places)}" for name, places in repeated_names(trees).items()), sep="\n  ")
    print("\nfiles in an ask:", *(f"{count} {name}" for name, count in asyncio.run(files_in_an_ask()).items()), sep="\n  ")


# ---------------------------------------------------------------- lines


def import_lines(tree: Tree) -> int:
    """Return how many lines only say where names come from, and which there are."""
    lines: set[int] = set()
    for node in tree.nodes:
        if isinstance(node, ast.Import | ast.ImportFrom) or (isinstance(node, ast.Assign) and _is_all(node)):
            lines |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
        elif isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            lines.add(node.lineno)
    return len(lines)


def _is_all(node: ast.Assign) -> bool:
    return isinstance(node.targets[0], ast.Name) and node.targets[0].id == "__all__"


def code_lines(tree: Tree) -> int:
    """Return how many lines have code on them: no docstring, no comment, not empty."""
    docs = {
        line
        for node in tree.nodes
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    used = {node.lineno for node in tree.nodes if isinstance(node, ast.stmt | ast.expr | ast.arg | ast.keyword)}
    return len(used - docs)


def anys(tree: Tree) -> int:
    return sum(isinstance(node, ast.Name) and node.id == "Any" for node in tree.nodes)


# ---------------------------------------------------------------- modules


def module_of(path: Path) -> str:
    steps = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(steps[:-1] if steps[-1] == "__init__" else steps)


def private_imports(trees: dict[Path, Tree]) -> Iterator[tuple[str, str]]:
    """Yield each import of a private module by a module outside of its package."""
    for path, tree in trees.items():
        module = module_of(path)
        for node in tree.nodes:
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("antiphon."):
                for name in _imported(node):
                    package = name[: name.index("._")] if "._" in name else None
                    if package is not None and module != package and not module.startswith(f"{package}."):
                        yield module, name


def _imported(node: ast.ImportFrom) -> list[str]:
    module = node.module or ""
    if "._" in module:
        return [module]
    return [f"{module}.{alias.name}" for alias in node.names if alias.name.startswith("_") and not alias.name.startswith("__")]


def repeated_names(trees: dict[Path, Tree]) -> dict[str, list[str]]:
    """Return the public class names that stand for two things or more, with their modules."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for path, tree in trees.items():
        if path.parent.parent == SOURCE / NATIVE or path in SEEDS:
            continue
        for node in tree.module.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_") and (path, node.name) not in SEED_NAMES:
                found[node.name].append(module_of(path))
    return {name: places for name, places in sorted(found.items()) if len(places) > 1}


def cycles() -> list[set[str]]:
    """Return the groups of modules that import each other, directly or through others; also only for type checking."""
    graph = grimp.build_graph("antiphon")
    below = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    while leaves := [module for module, imported in below.items() if not imported & below.keys()]:
        for leaf in leaves:
            del below[leaf]
    reached = {module: _reachable(module, below) for module in below}
    groups = {frozenset(other for other in reached[module] if module in reached[other]) for module in below}
    return [set(group) for group in groups if group]


def _reachable(module: str, below: dict[str, set[str]]) -> set[str]:
    found: set[str] = set()
    todo = [module]
    while todo:
        new = below.get(todo.pop(), set()) - found
        found |= new
        todo += new
    return found & below.keys()


# ---------------------------------------------------------------- an ask


class Answer(Reply, frozen=True):
    text: str


class Question(Request[Answer], frozen=True, type="FIGURES_QUESTION", family="figures"):
    text: str


class Answers(Actor):
    @handles
    async def answer(self, question: Question, context: Context) -> Answer:
        return Answer(text=question.text)


async def files_in_an_ask() -> dict[str, int]:
    """Return the files whose functions run for one ask in a thread, with how many functions each.

    Of a few asks, the one with the fewest: on a busy machine a timer of the runtime may come in between.
    """
    async with System() as system:
        system.spawn("answers", Answers)
        await system.ask("answers", Question(text="?"), thread_id="t")  # what is made only once is there
        asks = [await _traced_ask(system) for _ in range(5)]
    return min(asks, key=len)


async def _traced_ask(system: System) -> dict[str, int]:
    seen: set[tuple[str, str]] = set()

    def trace(frame: FrameType, event: str, argument: Any) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and SOURCE in path.parents:
            seen.add((str(path.relative_to(SOURCE)), frame.f_code.co_name))

    sys.setprofile(trace)
    try:
        await system.ask("answers", Question(text="?"), thread_id="t")
    finally:
        sys.setprofile(None)
    return dict(Counter(file for file, _ in seen))


if __name__ == "__main__":
    main()

"""The public surface: its reference pages, its list of names, and what changed since a commit.

- `tools/api.py pages` writes `docs/reference/`, one page a public module, from signatures and docstrings (`make docs`).
- `tools/api.py list` prints every public name with its parameters. `tests/public_names.txt` keeps the list; a test compares.
- `tools/api.py check REF` prints what breaks callers, compared with the commit `REF`, and fails if there is anything.

Griffe reads the source: nothing of the package is imported.
"""

import logging
import sys
from collections.abc import Iterator
from pathlib import Path

import griffe

ROOT = Path(__file__).parent.parent
PAGES = ROOT / "docs" / "reference"
INDEX = """# API reference

Every public name, with its signature and docstring.

| module | what it is for |
|---|---|
"""
PRIVATE = ("antiphon.cli", "antiphon.service")
LONG = 80  # characters: a longer value of a constant is left out


def main() -> None:
    match sys.argv[1:]:
        case ["pages"]:
            write_pages()
        case ["list"]:
            print("\n".join(sorted(names())))
        case ["check", ref]:
            sys.exit(check(ref))
        case _:
            sys.exit(__doc__)


def load() -> griffe.Module:
    logging.getLogger("griffe").setLevel(logging.ERROR)  # it warns about each documented error that has no annotation
    package = griffe.load("antiphon", search_paths=[ROOT / "src"], docstring_parser="google", resolve_aliases=True)
    if not isinstance(package, griffe.Module):
        raise TypeError(f"expected a package, got {package!r}")
    return package


def public_modules(package: griffe.Module) -> Iterator[griffe.Module]:
    """Yield the modules that users import by path, in order. The command line and what it shares with the server are none."""
    yield package
    for name, module in sorted(package.modules.items()):
        if not name.startswith("_") and not module.is_alias and module.path not in PRIVATE:
            yield from public_modules(module)


def exported(module: griffe.Module) -> Iterator[tuple[str, griffe.Object]]:
    """Yield the names of `__all__`, or those that a stub imports as themselves."""
    found = module.exports
    chosen = (
        [str(name) for name in found]
        if found is not None
        else [name for name, each in module.members.items() if each.is_alias]
    )
    for name in sorted(chosen):
        if not name.startswith("_") and not module.members[name].is_module:
            yield name, _target(module.members[name])


def _target(member: griffe.Object | griffe.Alias) -> griffe.Object:
    return member.final_target if isinstance(member, griffe.Alias) else member


def parts(found: griffe.Object) -> Iterator[tuple[str, griffe.Object]]:
    """Yield the public members that a class itself defines."""
    for name, member in sorted(found.members.items()):
        if not name.startswith("_") and not member.is_alias and not member.is_class:
            yield name, _target(member)


# ---------------------------------------------------------------- names


def names() -> Iterator[str]:
    """Yield every public name: `module.name(parameters)`, and for a class each of its public methods, once."""
    shown: set[str] = set()
    for module in reversed(list(public_modules(load()))):  # so that a class is shown where it is defined, not at the top
        for name, found in exported(module):
            yield f"{module.path}.{name}{_parameters(found)}"
            if found.is_class and found.path not in shown:
                shown.add(found.path)
                methods = [(part, each) for part, each in parts(found) if each.is_function]
                yield from (f"{module.path}.{name}.{part}{_parameters(each)}" for part, each in methods)


def _parameters(found: griffe.Object) -> str:
    if not isinstance(found, griffe.Function):
        return ""
    marks = {griffe.ParameterKind.var_positional: "*", griffe.ParameterKind.var_keyword: "**"}
    shown: list[str] = []
    keyword = False
    for each in found.parameters:
        if each.kind is griffe.ParameterKind.keyword_only and not keyword:
            keyword = True
            shown.append("*")
        keyword = keyword or each.kind is griffe.ParameterKind.var_positional
        mark = marks.get(each.kind) if each.kind is not None else None
        shown.append(f"{mark}{each.name}" if mark else each.name if each.default is None else f"{each.name}=")
    return f"({', '.join(shown)})"


def check(ref: str) -> int:
    """Print what breaks callers of the surface that the commit had. Return how many there are."""
    old = griffe.load_git("antiphon", ref=ref, repo=ROOT, search_paths=["src"], resolve_aliases=True)
    breaks = list(griffe.find_breaking_changes(old, load()))
    for found in breaks:
        print(found.explain(style=griffe.ExplanationStyle.ONE_LINE))
    return len(breaks)


# ---------------------------------------------------------------- pages


def page_names() -> list[str]:
    """Return the file names of the pages that `pages` writes."""
    return ["index.md", *(f"{module.path}.md" for module in public_modules(load()) if any(exported(module)))]


def write_pages() -> None:
    PAGES.mkdir(exist_ok=True)
    modules = [module for module in public_modules(load()) if any(exported(module))]
    for module in modules:
        (PAGES / f"{module.path}.md").write_text(_page(module))
    rows = [f"| [`{module.path}`]({module.path}.md) | {_summary(module)} |" for module in modules]
    (PAGES / "index.md").write_text(INDEX + "\n".join(rows) + "\n")


def _summary(found: griffe.Object) -> str:
    return found.docstring.value.splitlines()[0] if found.docstring else ""


def _page(module: griffe.Module) -> str:
    lines = [f"# {module.path}", "", *_docstring(module)]
    for name, found in exported(module):
        lines += [f"## {name}", "", *_signature(name, found), *_docstring(found)]
        if found.is_class:
            lines += _members(name, found)
    return "\n".join(lines) + "\n"


def _members(name: str, found: griffe.Object) -> list[str]:
    """Show fields and properties as one list, and each method with its signature."""
    fields = [each for _, each in parts(found) if isinstance(each, griffe.Attribute)]
    lines = [f"- `{each.name}{_annotation(each)}` {_text(each)}".rstrip() for each in fields] + ([""] if fields else [])
    for part, each in parts(found):
        if each.is_function:
            lines += [f"### {name}.{part}", "", *_signature(part, each), *_docstring(each)]
    return lines


def _annotation(found: griffe.Attribute) -> str:
    return f": {found.annotation}" if found.annotation is not None else ""


def _text(found: griffe.Object) -> str:
    return " ".join(found.docstring.value.split()) if found.docstring else ""


def _signature(name: str, found: griffe.Object) -> list[str]:
    if isinstance(found, griffe.Function):
        shown = f"{'async ' if 'async' in found.labels else ''}def {found.signature(name=name)}"
    elif isinstance(found, griffe.Class):
        bases = ", ".join(str(base) for base in found.bases)
        shown = f"class {name}({bases})" if bases else f"class {name}"
        init = found.members.get("__init__")
        if isinstance(init, griffe.Function):
            shown += f"\n\n{init.signature(name=name)}"
    elif isinstance(found, griffe.Attribute):
        value = "" if found.value is None or len(str(found.value)) > LONG else f" = {found.value}"
        shown = f"{name}{_annotation(found)}{value}"
    else:
        return []
    return ["```text", shown, "```", ""]


def _docstring(found: griffe.Object) -> list[str]:
    lines: list[str] = []
    for section in found.docstring.parsed if found.docstring else ():
        match section:
            case griffe.DocstringSectionText() | griffe.DocstringSectionAdmonition():
                lines += [str(section.value), ""]
            case griffe.DocstringSectionRaises():
                lines += ["Raises:", "", *(f"- `{each.annotation}`: {each.description}" for each in section.value), ""]
            case griffe.DocstringSectionParameters():
                lines += ["Parameters:", "", *(f"- `{each.name}`: {each.description}" for each in section.value), ""]
            case griffe.DocstringSectionExamples():
                lines += [str(text) for _, text in section.value] + [""]
            case _:
                lines += [str(section.value), ""]
    return lines


if __name__ == "__main__":
    main()

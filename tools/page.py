"""Check the page: what its files may not say, and the types in their JSDoc.

The files are served as they are written, so they are checked as they are written. TypeScript only reads: it makes nothing. The
types of the libraries come from their npm packages, in the versions of `vendor.json`.

    python -m tools.page          both
    python -m tools.page lint     only the words; needs no network
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tools.npm import CACHE, NODE, ROOT, CannotFetchError, package

PAGE: Final = ROOT / "src" / "antiphon" / "server" / "page"

_NO_HTML: Final = "text becomes text nodes only: use html`…` of lib.js"
_NO_CODE: Final = "no code from a string: the content security policy refuses it"
_NO_INLINE: Final = "the content security policy refuses it inline: put it into a file of the page"
_NO_ORIGIN: Final = "the page asks no other origin"

RULES: Final = {
    ".js": (
        (r"\b(?:inner|outer)HTML\b|\binsertAdjacentHTML\b|\bdangerouslySetInnerHTML\b|\bsrcdoc\b", _NO_HTML),
        (r"\bsetHTML(?:Unsafe)?\b|\bparseHTML(?:Unsafe)?\b|\bDOMParser\b|\bcreateContextualFragment\b", _NO_HTML),
        (r"\bdocument\s*\.\s*write(?:ln)?\b|\bXSLTProcessor\b", _NO_HTML),
        (r"\bcreatePolicy\b", "no policy of trusted types: there is no string that may become HTML"),
        (r"\beval\s*\(|\bFunction\s*\(|\bset(?:Timeout|Interval)\s*\(\s*[\"'`]|javascript:", _NO_CODE),
        (r"\bimport\s*\((?!\s*\")|\bWorker\s*\(|\bimportScripts\b", "a module is imported by a fixed path"),
        (r"setAttribute\(\s*[\"'`](?:on|style)|<style\b|<script\b|<iframe\b|<object\b|<embed\b", _NO_INLINE),
        (r"\son[A-Za-z]+\s*=\s*[\"']", "a handler is a function: onClick=${…}"),
        (r"""["'`(]\s*(?:https?:|wss?:|ftp:)?//[\w\[]""", _NO_ORIGIN),
        (r"\bimport\b[^;]*\bfrom\s+[\"'](?!\./|\.\./)", "a module of the page is imported by a relative path"),
    ),
    ".html": (
        (r"<style\b|\sstyle\s*=|\son[a-z]+\s*=|<script(?![^>]*\ssrc=)|<base\b|http-equiv|srcdoc|<iframe\b", _NO_INLINE),
        (r"(?:https?:|wss?:|ftp:)?//[\w\[]", _NO_ORIGIN),
        (r"javascript:", _NO_CODE),
    ),
    ".css": (
        (r"@import\b|(?:https?:)?//[\w\[]", _NO_ORIGIN),
        (r"url\(\s*[\"']?(?!data:image/|#|\./|[\w-]+\.svg)", _NO_ORIGIN),
        (r"expression\s*\(|(?<![\w-])behavior\s*:|javascript:", _NO_CODE),
    ),
    ".svg": (
        (r"<script\b|\son[a-z]+\s*=|<foreignObject\b|javascript:", _NO_INLINE),
        (r"(?<!xmlns=\")(?<!xlink=\")(?:https?:)?//[\w\[]|<image\b|<use\b(?![^>]*href=\"#)", _NO_ORIGIN),
    ),
}
"""By the end of a file's name: what it may not contain, and why."""
_NAMESPACE: Final = re.compile(r"[\"']http://www\.w3\.org/(?:2000/svg|1999/xhtml)[\"']")

_TYPES: Final = {
    "preact.d.ts": 'export * from "preact";\n',
    "hooks.d.ts": 'export * from "preact/hooks";\n',
    "signals.d.ts": 'export * from "@preact/signals";\n',
    "signals-core.d.ts": 'export * from "@preact/signals-core";\n',
    "htm.d.ts": 'import htm from "htm";\nexport default htm;\n',
}
"""The libraries are minified, so their own types stand beside them."""
_OPTIONS: Final = {
    "allowJs": True,
    "checkJs": True,
    "lib": ["es2023", "dom", "dom.iterable"],
    "module": "esnext",
    "moduleResolution": "bundler",
    "noEmit": True,
    "noFallthroughCasesInSwitch": True,
    "noImplicitReturns": True,
    "noUnusedLocals": True,
    "noUnusedParameters": True,
    "skipLibCheck": True,
    "strict": True,
    "target": "es2023",
    "types": [],
}


def faults(name: str, text: str) -> Iterator[str]:
    """Yield what a file of this name may not say, with the number of the line."""
    text = _NAMESPACE.sub('""', text)
    for pattern, why in RULES.get(Path(name).suffix, ()):
        for found in re.finditer(pattern, text):
            yield f"{name}:{text.count(chr(10), 0, found.start()) + 1}: {found.group().strip()!r}: {why}"


def lint(folder: Path = PAGE) -> list[str]:
    """Return what is wrong with the files of the page, its libraries aside."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and "vendor" not in path.parts]
    return [fault for path in files for fault in faults(str(path.relative_to(folder)), path.read_text(errors="replace"))]


def check_types(folder: Path = PAGE) -> list[str]:
    """Return the errors that TypeScript finds in the modules of the page."""
    listed = json.loads((folder / "vendor" / "vendor.json").read_text())
    modules = CACHE / "node_modules"
    for name, each in listed.items():
        _link(package(name, each["version"], each["integrity"]) / "package", modules / name)
    copy = CACHE / f"page-{os.getpid()}"  # below CACHE, where TypeScript finds node_modules
    try:
        shutil.copytree(folder, copy, ignore=shutil.ignore_patterns("*.json", "*.css", "*.svg", "*.html"))
        for each in (copy / "vendor").glob("*.js"):
            each.with_suffix(".d.ts").write_text(_TYPES[each.with_suffix(".d.ts").name])
            each.unlink()
        (copy / "tsconfig.json").write_text(json.dumps({"compilerOptions": _OPTIONS, "include": ["**/*.js"]}))
        command = [NODE, package("typescript") / "package" / "lib" / "tsc.js", "--project", copy, "--pretty", "false"]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, cwd=copy)  # noqa: S603 (no shell)
    finally:
        shutil.rmtree(copy, ignore_errors=True)
    return (ran.stdout + ran.stderr).splitlines() if ran.returncode else []


def _link(target: Path, place: Path) -> None:
    """Have `place` lead to `target`, also if another process does the same."""
    if place.is_symlink() and place.readlink() == target:
        return
    place.parent.mkdir(parents=True, exist_ok=True)
    fresh = place.with_name(f".{place.name}-{os.getpid()}")
    fresh.symlink_to(target)
    fresh.replace(place)


def main() -> None:
    try:
        found = lint() + ([] if "lint" in sys.argv[1:] else check_types())
    except CannotFetchError as exc:
        sys.exit(f"the types of the page are not checked: {exc}")
    if found:
        sys.exit("\n".join(found))


if __name__ == "__main__":
    main()

"""The files of the page: what they may not say, and that the libraries are the recorded ones. S10."""

import hashlib
import json
import shutil
from pathlib import Path

import pytest
from tools.page import PAGE, check_types, faults, lint

REFUSED = {
    "a.js": [
        "node.innerHTML = text",
        "node['outerHTML'] = text",
        "node.insertAdjacentHTML('beforeend', text)",
        "html`<div dangerouslySetInnerHTML=${{ __html: text }} />`",
        "html`<iframe srcdoc=${text} />`",
        "document.write(text)",
        "document . writeln(text)",
        "node.setHTMLUnsafe(text)",
        "new DOMParser()",
        "range.createContextualFragment(text)",
        "trustedTypes.createPolicy('all', {})",
        "eval(text)",
        "new Function(text)",
        "setTimeout('go()', 1)",
        "html`<a href='javascript:go()'>x</a>`",
        "await import(name)",
        "new Worker(name)",
        "node.setAttribute('style', text)",
        "node.setAttribute(`onclick`, text)",
        "html`<button onClick='go()'>x</button>`",
        "html`<style>b {}</style>`",
        "fetch('https://elsewhere.example/')",
        'fetch("//elsewhere.example/")',
        "new WebSocket(`wss://elsewhere.example`)",
        "import { h } from 'preact';",
        'import x from "https://elsewhere.example/x.js";',
    ],
    "index.html": [
        '<div style="color: red">',
        "<body onload='go()'>",
        "<script>go()</script>",
        '<script src="https://elsewhere.example/x.js"></script>',
        '<link rel="stylesheet" href="//elsewhere.example/x.css">',
        '<base href="/x">',
        '<meta http-equiv="refresh" content="1">',
        "<style>b {}</style>",
    ],
    "a.css": [
        "@import 'x.css';",
        "b { background: url(https://elsewhere.example/x.png) }",
        'b { background: url("//elsewhere.example/x.png") }',
        "b { background: url(/api/threads) }",
    ],
    "a.svg": [
        "<svg><script>go()</script></svg>",
        "<svg onload='go()'/>",
        '<svg><image href="x.png"/></svg>',
        '<svg><use href="https://elsewhere.example/x.svg#a"/></svg>',
    ],
}
ALLOWED = {
    "a.js": [
        "html`<button onClick=${go} class='quiet'>x</button>`",
        "html`<i style=${{ width: `${share}%` }} />`",
        'document.createElementNS("http://www.w3.org/2000/svg", "svg")',
        'import { html } from "./lib.js"; // a function of our own',
        "setTimeout(() => go(), 1)",
        "const evaluated = evaluate(text); node.textContent = text",
        "const half = total // 2\n  / 2",
    ],
    "index.html": ['<script type="module" src="{page}/app.js"></script>', '<meta name="color-scheme" content="light dark" />'],
    "a.css": ["b { background: url(#shape) }", "b { mask: url(data:image/svg+xml,x) }"],
    "a.svg": ['<svg xmlns="http://www.w3.org/2000/svg"><path d="M0 0"/></svg>'],
}


@pytest.mark.parametrize(("name", "text"), [(name, text) for name, texts in REFUSED.items() for text in texts])
def test_forbidden_code_in_a_file_is_refused(name: str, text: str) -> None:
    assert list(faults(name, f"\n{text}\n"))
    assert all(fault.startswith(f"{name}:2: ") for fault in faults(name, f"\n{text}\n"))


@pytest.mark.parametrize(("name", "text"), [(name, text) for name, texts in ALLOWED.items() for text in texts])
def test_allowed_code_in_a_file_is_accepted(name: str, text: str) -> None:
    assert not list(faults(name, text))


def test_the_page_has_no_forbidden_code() -> None:
    assert lint() == []


def test_the_libraries_are_the_recorded_ones() -> None:
    folder = PAGE / "vendor"
    listed = json.loads((folder / "vendor.json").read_text())
    recorded = {name: file["sha256"] for each in listed.values() for name, file in each["files"].items()}
    found = {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir() if path.name != "vendor.json"
    }
    assert found == recorded
    assert {each["license"] for each in listed.values()} <= {"MIT", "Apache-2.0"}


@pytest.mark.slow
def test_types_of_the_page_are_checked_with_those_of_its_libraries(tmp_path: Path) -> None:
    shutil.copytree(PAGE / "vendor", tmp_path / "vendor")
    shutil.copy(PAGE / "lib.js", tmp_path)
    (tmp_path / "good.js").write_text(
        'import { signal } from "./lib.js";\nexport const count = signal(1);\ncount.value += 1;\n'
    )
    (tmp_path / "wrong.js").write_text('import { count } from "./good.js";\ncount.value = "two";\n')
    (found,) = check_types(tmp_path)
    assert found == "wrong.js(2,1): error TS2322: Type 'string' is not assignable to type 'number'."

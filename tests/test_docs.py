"""Every example in the README, the docs and the docstrings runs, and prints what it says it prints."""

import asyncio
import inspect
import re
import traceback
from collections.abc import Generator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pytest_examples import CodeExample, EvalExample, find_examples

from antiphon.messages import use_port
from antiphon.protocol import _messages as declared_messages
from antiphon.testing import CountingPort

REGISTRY: Any = declared_messages
ROOT = Path(__file__).parent.parent
GENERATED = ROOT / "docs" / "reference"  # from docstrings, whose examples run where they are written
EXAMPLES = [
    example
    for example in find_examples(ROOT / "README.md", ROOT / "docs", ROOT / "src")
    if not example.path.is_relative_to(GENERATED)
]
SOUGHT = ("Approve a call", "Use Anthropic", "Scale out", "What is stored", "Delete a user's data")
"""What users look for first."""


@pytest.mark.parametrize("first", ["README.md", "docs/index.md"])
def test_what_users_look_for_is_two_clicks_from_the_first_page(first: str) -> None:
    """A click opens a page, another one a heading of it."""
    page = ROOT / first
    pages = [page.parent / link for link in re.findall(r"\]\(([\w/.-]+\.md)\)", page.read_text())]
    headings = [
        heading for each in pages if each.is_file() for heading in re.findall(r"^#+ (.+)$", each.read_text(), re.MULTILINE)
    ]

    assert [each for each in SOUGHT if not any(heading.startswith(each) for heading in headings)] == []


@pytest.fixture(autouse=True)
def stack_without_source_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Find where an example prints without the source lines of all its callers, for which Python asks thousands of modules."""
    monkeypatch.setattr(inspect, "stack", partial(inspect.stack, 0))


@pytest.fixture(autouse=True)
def message_types_of_antiphon_alone() -> Generator[None]:
    """Examples declare types of messages, and so do other tests in this process. A type has one class."""
    tables: list[dict[str, Any]] = [REGISTRY._ENTRIES, REGISTRY._MODELS, REGISTRY.RESPONSE_TYPES]
    declared = _types_of_others()
    saved = [{name: table[name] for name in declared if name in table} for table in tables]
    _forget(tables, declared)
    yield
    _forget(tables, _types_of_others())
    for table, entries in zip(tables, saved, strict=True):
        table.update(entries)


def _types_of_others() -> list[str]:
    return [name for name, model in REGISTRY._MODELS.items() if not model.__module__.startswith("antiphon.")]


def _forget(tables: list[dict[str, Any]], names: list[str]) -> None:
    for table in tables:
        for name in names:
            table.pop(name, None)


@pytest.mark.slow
@pytest.mark.parametrize("example", EXAMPLES, ids=str)
def test_an_example_runs(example: CodeExample, eval_example: EvalExample) -> None:
    """Ids and times in the output are those of a counting port."""
    loop = asyncio.new_event_loop()  # `run_sync` leaves the loop of its thread open, for the next call
    asyncio.set_event_loop(loop)
    with use_port(CountingPort()), closing(loop):
        if eval_example.update_examples:
            eval_example.run_print_update(example)
            return
        failure = ""
        try:
            eval_example.run_print_check(example)
        except Exception as exc:  # noqa: BLE001 (an example raises anything)
            frames = [f"{frame.f_code.co_filename}:{line}" for frame, line in traceback.walk_tb(exc.__traceback__)]
            failure = "\n".join((*frames[-3:], f"{type(exc).__name__}: {exc}"))
    # Not the exception itself: its traceback has positions of other code, and pytest ends when it shows them.
    if failure:
        pytest.fail(failure, pytrace=False)

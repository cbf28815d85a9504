"""`antiphon knowledge`: documents go into a ledger and are found there, and what is no document is refused."""

import json
from pathlib import Path

import pytest
import typer
from tests.cli.running import run

from antiphon.cli import app
from antiphon.cli._live import program_name

PAGE = Path(__file__).parents[3] / "docs" / "cli.md"


@pytest.fixture
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    Path("shop.md").write_text("# Returns\n\nRefunds are paid within 14 days.\n\n# Shipping\n\nWe ship to Spain.\n")
    return f"sqlite:///{tmp_path}/ledger.db"


@pytest.mark.slow
def test_documents_are_added_once_and_found_with_their_ids(ledger: str) -> None:
    first = run("knowledge", "add", "shop.md", "--ledger", ledger)
    again = json.loads(run("knowledge", "add", "shop.md", "--json", "--ledger", ledger).stdout)
    found = json.loads(run("search", "--documents", "Where", "do", "you", "ship?", "--json", "--ledger", ledger).stdout)

    assert first.stdout.splitlines()[1].split() == ["shop.md", "2", "1", "added"]
    assert again == [{"source": "shop.md", "passages": 2, "version": 1, "is_new": False, "new_language": None}]
    assert [(each["source"], each["text"]) for each in found] == [("shop.md", "# Shipping\n\nWe ship to Spain.")]
    shown = run("search", "--documents", "refunds", "ship", "--limit", "1", "--ledger", ledger).stdout
    assert shown.count("shop.md") == 1
    assert found[0]["id"].rpartition("-")[0] in shown


def test_several_passages_are_set_apart_and_an_empty_result_is_reported(ledger: str) -> None:
    run("knowledge", "add", "shop.md", "--ledger", ledger)

    assert "\n\nkb-" in run("search", "--documents", "refunds ship", "--ledger", ledger).stdout
    nothing = run("search", "--documents", "xylophone", "--ledger", ledger)
    assert (nothing.exit_code, nothing.stdout, nothing.stderr) == (0, "", "nothing found\n")


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"\xff\xfe\x00bad", "not text in UTF-8"),
        (b"", "the file has no text"),
        (b"a\0b", "the file has no text"),
        (None, "other.txt: No such file"),
    ],
)
def test_a_file_that_is_no_document_is_refused_and_creates_no_ledger(
    ledger: str, content: bytes | None, complaint: str
) -> None:
    if content is not None:
        Path("other.txt").write_bytes(content)

    result = run("knowledge", "add", "shop.md", "other.txt", "--ledger", ledger)

    assert result.exit_code == 2
    assert complaint in result.stderr
    assert not Path("ledger.db").exists()


@pytest.mark.parametrize("more", [("--encoding", "klingon"), ("--language", "tlh")])
def test_an_unknown_encoding_or_language_is_refused(ledger: str, more: tuple[str, str]) -> None:
    refused = run("knowledge", "add", "shop.md", *more, "--ledger", ledger)

    assert (refused.exit_code, more[1] in refused.stderr) == (2, True)
    assert not Path("ledger.db").exists()


def test_a_file_that_is_too_large_is_refused(ledger: str) -> None:
    with open("large.txt", "wb") as file:
        file.truncate(20_000_001)

    result = run("knowledge", "add", "large.txt", "--ledger", ledger)

    assert (result.exit_code, "more than 20 MB; divide it" in result.stderr) == (2, True)


@pytest.mark.slow
def test_a_folder_is_added_listed_and_removed(ledger: str) -> None:
    Path("docs/deep").mkdir(parents=True)
    for number in range(45):
        Path(f"docs/deep/{number:02}.md").write_text(f"# Page {number}\n\nAbout subject{number}.")
    Path("docs/bad.txt").write_bytes(b"\xff")

    added = run("knowledge", "add", "docs", "shop.md", "--ledger", ledger)
    again = run("knowledge", "add", "docs", "--ledger", ledger)
    found = json.loads(run("search", "--documents", "refunds subject7", "--in", "docs/*", "--json", "--ledger", ledger).stdout)
    removed = run("knowledge", "remove", "docs/deep/07.md", "--ledger", ledger)
    assert (removed.stdout, removed.stderr) == ("", "docs/deep/07.md: removed\n")
    gone = run("search", "--documents", "subject7", "--ledger", ledger)
    listed = json.loads(run("knowledge", "list", "--json", "--ledger", ledger).stdout)

    assert added.stdout == "46 documents added, 0 as they were\n"
    assert added.stderr == "left out: docs/bad.txt: not text in UTF-8; convert it first, or name its encoding\n"
    assert again.stdout == "0 documents added, 45 as they were\n"
    assert [(each["source"], each["heading"], each["lines"]) for each in found] == [("docs/deep/07.md", ["Page 7"], [1, 3])]
    assert gone.stderr == "nothing found\n"
    assert len(listed) == 45
    assert {"source": "shop.md", "passages": 2, "version": 1} in listed
    assert "docs/deep/08.md  1         1" in run("knowledge", "list", "--ledger", ledger).stdout


def test_an_unchanged_file_is_indexed_again_in_another_language(ledger: str) -> None:
    """It said "as it was", and the file stayed in the language that was detected."""
    Path("wagen.md").write_text("Die Wagen")

    added = run("knowledge", "add", "wagen.md", "--language", "en", "--ledger", ledger)
    german = run("knowledge", "add", "wagen.md", "--language", "de", "--ledger", ledger)
    again = run("knowledge", "add", "wagen.md", "--language", "de", "--ledger", ledger)
    without = run("knowledge", "add", "wagen.md", "--ledger", ledger)
    found = json.loads(run("search", "--documents", "Wagen", "--json", "--ledger", ledger).stdout)

    assert added.stdout.splitlines()[1].split(maxsplit=3) == ["wagen.md", "1", "1", "added"]
    assert german.stdout.splitlines()[1].split(maxsplit=3) == ["wagen.md", "1", "2", "indexed again as de"]
    for each in (again, without):
        assert each.stdout.splitlines()[1].split(maxsplit=3) == ["wagen.md", "1", "2", "as it was"]
    assert [(each["language"], each["version"]) for each in found] == [("de", 2)]


@pytest.mark.slow
def test_many_files_are_indexed_again_in_another_language(ledger: str) -> None:
    Path("docs").mkdir()
    for number in range(45):
        Path(f"docs/{number:02}.md").write_text(f"About subject{number}.")
    run("knowledge", "add", "docs", "--language", "en", "--ledger", ledger)
    Path("docs/99.md").write_text("About this.")

    again = run("knowledge", "add", "docs", "--language", "nl", "--ledger", ledger)

    assert again.stdout == "1 documents added, 45 indexed again as nl, 0 as they were\n"


def test_a_document_is_erased_and_an_unknown_one_is_reported(ledger: str) -> None:
    run("knowledge", "add", "shop.md", "--ledger", ledger)

    erased = run("knowledge", "remove", "shop.md", "--erase", "--json", "--ledger", ledger)
    missing = run("knowledge", "remove", "shop.md", "--ledger", ledger)

    assert json.loads(erased.stdout) == {"shop.md": True}
    listing = f"{program_name()} knowledge list --ledger {ledger}"
    assert (missing.exit_code, missing.stderr) == (2, f"there is no document 'shop.md'; `{listing}` lists them\n")
    assert b"Refunds" not in Path("ledger.db").read_bytes()
    adding = f"{program_name()} knowledge add FILES --ledger {ledger}"
    assert run("knowledge", "list", "--ledger", ledger).stderr == f"no documents; `{adding}` adds some\n"


def test_a_citation_is_shown_with_the_source_around_it(ledger: str) -> None:
    run("knowledge", "add", "shop.md", "--ledger", ledger)
    (found,) = json.loads(run("search", "--documents", "ship", "--json", "--ledger", ledger).stdout)

    shown = run("show", found["id"], "--ledger", ledger)
    value = json.loads(run("show", found["id"], "--json", "--ledger", ledger).stdout)
    missing = run("show", "kb-0123456789-1-1", "--ledger", ledger)

    lines = [
        "  1  # Returns",
        "  2",
        "  3  Refunds are paid within 14 days.",
        "> 5  # Shipping",
        "> 6",
        "> 7  We ship to Spain.",
    ]
    assert shown.stdout.splitlines() == [f"{found['id']}  shop.md > Shipping, lines 5-7", *lines]
    assert (value["heading"], value["around"][-1]) == (["Shipping"], {"line": 7, "text": "We ship to Spain."})
    assert (missing.exit_code, "there is no such passage" in missing.stderr) == (2, True)


def test_every_option_of_the_commands_inside_is_documented() -> None:
    section = PAGE.read_text().split("## `antiphon knowledge`\n")[1].split("\n## ")[0]

    for name, command in typer.main.get_command(app).commands["knowledge"].commands.items():
        assert f"antiphon knowledge {name}" in section
        for parameter in command.params:
            for option in parameter.opts if parameter.param_type_name == "option" else [parameter.metavar]:
                assert option == "--help" or f"{option}" in section, option

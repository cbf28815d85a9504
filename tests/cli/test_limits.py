"""`antiphon limits`: limits of model requests for all hosts, and a thread that one of them stops."""

import json
from pathlib import Path

import pytest
from tests.cli.running import run

pytest.importorskip("apsw")


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/ledger.db"


def limited(url: str) -> dict[str, tuple[int | None, int | None, float | None]]:
    found = json.loads(run("limits", "--json", "--ledger", url).stdout)
    return {each["model"]: (each["at_once"], each["per_minute"], each["cost_per_day"]) for each in found}


@pytest.mark.slow
def test_limits_are_set_changed_and_removed(url: str) -> None:
    assert run("limits", "gpt-5", "--at-once", "8", "--per-minute", "500", "--ledger", url).exit_code == 0
    assert run("limits", "*", "--cost-per-day", "20.50", "--ledger", url).exit_code == 0
    assert limited(url) == {"*": (None, None, 20.5), "gpt-5": (8, 500, None)}
    assert run("limits", "gpt-5", "--at-once", "4", "--ledger", url).exit_code == 0
    assert limited(url)["gpt-5"] == (4, 500, None)
    assert run("limits", "gpt-5", "--remove", "--at-once", "3", "--ledger", url).exit_code == 0
    assert limited(url)["gpt-5"] == (3, None, None)
    assert run("limits", "gpt-5", "--remove", "--ledger", url).exit_code == 0
    assert run("limits", "*", "--remove", "--ledger", url).stderr.startswith("no model is limited;")


def test_a_file_has_all_limits(url: str, tmp_path: Path) -> None:
    file = tmp_path / "limits.toml"
    run("limits", "old", "--at-once", "8", "--ledger", url)
    file.write_text('[limits."*"]\ncost_per_day = 20\n[limits."openai:gpt-5"]\nat_once = 8\ncost_per_day = 1.50\n')
    assert run("limits", "--file", file, "--ledger", url).exit_code == 0
    assert limited(url) == {"*": (None, None, 20), "openai:gpt-5": (8, None, 1.5)}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('[limits."*"]\nat_onze = 3\n', "limits.*.at_onze: there is no key 'at_onze'; is it 'at_once'?"),
        ("[limit.x]\nat_once = 3\n", "there is no key 'limit'; is it 'limits'?"),
        ("[limits]\nx = 3\n", "limits.x: Input should be a valid dictionary"),
        ("[limits.x]\nat_once = true\n", "limits.x.at_once: Input should be a valid integer"),
        ("[limits.x]\ncost_per_day = '3'\n", "limits.x.cost_per_day"),
        ("[limits.x\n", "Expected ']'"),
    ],
)
def test_a_wrong_file_changes_nothing(url: str, tmp_path: Path, text: str, reason: str) -> None:
    run("limits", "old", "--at-once", "8", "--ledger", url)
    (tmp_path / "limits.toml").write_text(text)
    done = run("limits", "--file", tmp_path / "limits.toml", "--ledger", url)
    assert (done.exit_code != 0, reason in done.stderr, len(done.stderr.splitlines())) == (True, True, 1), done.stderr
    assert limited(url) == {"old": (8, None, None)}


@pytest.mark.parametrize(
    "wrong",
    [
        ("--at-once", "3"),
        ("gpt-5",),
        ("*", "--cost-per-day", "much"),
        ("*", "--cost-per-day", "-1"),
        ("*", "--cost-per-day", "NaN"),
        ("", "--at-once", "3"),
        ("--file", "none.toml"),
        ("x", "--at-once", "3", "--file", "none.toml"),
    ],
)
def test_a_wrong_limit_is_reported_in_one_line(url: str, wrong: tuple[str, ...]) -> None:
    done = run("limits", *wrong, "--ledger", url)
    assert (done.exit_code != 0, len(done.stderr.splitlines())) == (True, 1), done.stderr


@pytest.mark.slow
def test_a_thread_without_money_is_stopped_and_resumed_with_another_limit(url: str) -> None:
    run("limits", "*", "--cost-per-day", "0", "--ledger", url)
    done = run("run", "What is a lease?", "--model", "scripted", "--ledger", url)
    assert "stopped: requests of all models are limited to 0 US dollars a day, and these are spent" in done.stderr
    (thread,) = json.loads(run("threads", "--json", "--ledger", url).stdout)
    assert thread["status"] == "stopped"
    run("limits", "*", "--cost-per-day", "1", "--ledger", url)
    assert run("resume", thread["thread_id"], "--ledger", url).exit_code == 0
    (thread,) = json.loads(run("threads", "--json", "--ledger", url).stdout)
    assert thread["status"] == "completed"

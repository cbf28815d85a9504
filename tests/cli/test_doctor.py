"""`antiphon doctor` examines a file and says what to change."""

import json
from pathlib import Path

import pytest
from tests.cli.running import run


def test_a_good_file_is_reported_as_good(tmp_path: Path) -> None:
    ledger = _ledger(tmp_path)
    done = run("doctor", "--ledger", str(ledger))
    assert done.exit_code == 0, done.output
    assert all(line.startswith("ok") for line in done.stdout.splitlines()[1:])
    assert "synchronous                   full" in done.stdout


def test_a_file_that_others_can_change_is_reported_with_the_command(tmp_path: Path) -> None:
    ledger = _ledger(tmp_path)
    ledger.chmod(0o666)
    done = run("doctor", "--ledger", str(ledger))
    assert done.exit_code == 1
    assert f"permissions: other users can change the file; chmod 600 {ledger}" in done.stderr
    found = json.loads(run("doctor", "--json", "--ledger", str(ledger)).stdout)
    assert [each["what"] for each in found if each["advice"]] == ["permissions"]


def test_redaction_that_is_off_is_reported(tmp_path: Path) -> None:
    done = run("doctor", "--ledger", str(_ledger(tmp_path)), ANTIPHON_REDACTION="off")
    assert done.exit_code == 1
    assert "secrets in messages are stored as they are" in done.stderr


@pytest.mark.slow
def test_other_redaction_rules_are_refused_until_they_are_adopted(tmp_path: Path) -> None:
    """A host with other rules would store other bytes of the same message."""
    place = ("--ledger", str(tmp_path / "ledger.db"))
    asked = ("run", "What is 2 + 2?", "--model", "scripted", *place)
    assert run(*asked).exit_code == 0
    refused = run(*asked, ANTIPHON_REDACTION="off")
    assert refused.exit_code == 2
    assert "adopt these with `antiphon doctor --adopt-redaction`" in refused.stderr
    assert len(refused.stderr.splitlines()) == 1
    assert "other rules than this command" in run("doctor", *place, ANTIPHON_REDACTION="off").stderr
    run("doctor", "--adopt-redaction", *place, ANTIPHON_REDACTION="off")
    assert run(*asked, ANTIPHON_REDACTION="off").exit_code == 0
    assert run(*asked).exit_code == 2


def test_a_missing_ledger_is_not_made(tmp_path: Path) -> None:
    assert run("doctor", "--ledger", str(tmp_path / "none.db")).exit_code == 2
    assert list(tmp_path.iterdir()) == []


def _ledger(folder: Path) -> Path:
    """A ledger with one message."""
    talk = folder / "talk.json"
    talk.write_text(json.dumps([{"role": "user", "content": "hello"}]))
    assert run("import", str(talk), "--ledger", str(folder / "ledger.db")).exit_code == 0
    return folder / "ledger.db"

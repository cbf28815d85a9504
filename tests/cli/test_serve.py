"""`antiphon serve` and `antiphon token`, as a user types them: a real process, a real token file, a real signal."""

import json
import os
import re
import signal
import stat
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from tests.cli.running import run
from tests.forked import Forked

pytestmark = pytest.mark.slow


def _status(url: str, token: str) -> int:
    asked = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})
    try:
        with urllib.request.urlopen(asked, timeout=10) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as exc:
        with exc:
            return exc.code


@pytest.mark.timeout(60)
def test_a_server_is_used_with_its_file_and_with_tokens_until_they_are_revoked(tmp_path: Path) -> None:
    """S12: the address and the file are printed; a token of another command works until another command revokes it."""
    ledger = tmp_path / "ledger.db"
    environment = {**os.environ, "XDG_CONFIG_HOME": str(tmp_path / "config")}
    arguments = [sys.executable, "-m", "antiphon", "serve", "--port", "0", "--ledger", str(ledger)]
    server = Forked(arguments, stdout=-1, stderr=-1, env=environment)
    try:
        assert server.stdout is not None
        url = re.search(r"at (http://127\.0\.0\.1:\d+)$", server.stdout.readline().decode().strip())
        file = Path(server.stdout.readline().decode().strip().removeprefix("token: "))
        assert url is not None
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert _status(f"{url[1]}/api/health", file.read_text().strip()) == 200
        made = json.loads(run("token", "make", "ada", "--json", "--ledger", ledger).stdout)
        assert made["scopes"] == ["read"]
        assert _status(f"{url[1]}/api/threads", made["token"]) == 200
        assert run("token", "revoke", made["id"], "--ledger", ledger).exit_code == 0
        assert _status(f"{url[1]}/api/threads", made["token"]) == 401
        server.send_signal(signal.SIGTERM)
        rest, _ = server.communicate(timeout=20)
        assert server.returncode == 0
        assert rest.decode().split("\n")[-2] == "stopped"
        assert not file.exists()
    finally:
        server.kill()
        server.wait()


def test_tokens_are_made_listed_and_revoked_and_shown_once(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.db"
    made = run("token", "make", "ada", "--scope", "send", "--days", "0", "--ledger", ledger)
    text = made.stdout.strip()
    assert re.fullmatch(r"aph_[a-z2-7]{8}_[\w-]{43}", text)
    assert "it does not expire" in made.stderr
    listed = run("token", "list", "--ledger", ledger).stdout
    assert "ada" in listed
    assert "valid" in listed
    assert text.rpartition("_")[2] not in listed
    own = text.split("_")[1]
    assert run("token", "revoke", own, "--ledger", ledger).exit_code == 0
    assert "revoked" in run("token", "list", "--ledger", ledger).stdout
    assert run("token", "revoke", own, "--ledger", ledger).exit_code == 1
    for wrong in (("a b",), ("ada", "--scope", "all"), ("ada", "--days", "-1"), ("ada", "--days", "1e12")):
        refused = run("token", "make", *wrong, "--ledger", ledger)
        assert (refused.exit_code, refused.stdout) == (2, ""), wrong


def test_a_server_for_other_machines_must_be_asked_for(tmp_path: Path) -> None:
    refused = run("serve", "--host", "0.0.0.0", "--port", "0", "--ledger", tmp_path / "ledger.db")
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "--allow-remote" in refused.stderr

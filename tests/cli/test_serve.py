"""`antiphon serve` and `antiphon token`, as a user types them: a real process, a real token file, a real signal."""

import json
import os
import pty
import re
import signal
import stat
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from urllib.parse import parse_qsl

import pytest
from tests.cli.running import run
from tests.forked import Forked

from antiphon.cli._live import program_name

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
        rest, noted = server.communicate(timeout=20)
        assert b"code=" not in noted
        assert server.returncode == 0
        assert rest.decode().split("\n")[-2] == "stopped"
        assert not file.exists()
    finally:
        server.kill()
        server.wait()


@pytest.mark.timeout(60)
def test_at_a_terminal_a_server_prints_a_link_that_opens_one_session(tmp_path: Path) -> None:
    """The code is in the fragment. Where the lines go to a file, there is no link: it would be a secret in a log."""
    environment = {**os.environ, "XDG_CONFIG_HOME": str(tmp_path / "config"), "COLUMNS": "60", "TERM": "dumb"}
    arguments = [sys.executable, "-m", "antiphon", "serve", "--port", "0", "--ledger", str(tmp_path / "ledger.db")]
    master, terminal = pty.openpty()
    server = Forked(arguments, stdout=-1, stderr=terminal, env=environment)
    os.close(terminal)
    try:
        seen = ""
        while not (found := re.search(r"(http://127\.0\.0\.1:\d+)/#code=([\w-]+)\s", seen)):
            seen += os.read(master, 10_000).decode()
        assert re.search(rf"^  curl -H .* {found[1]}/api/threads\r$", seen, re.MULTILINE)  # unbroken, to copy
        body = json.dumps({"code": found[2]}).encode()
        headers = {"Content-Type": "application/json", "Origin": found[1]}
        asked = urllib.request.Request(f"{found[1]}/api/session", body, headers)
        with urllib.request.urlopen(asked, timeout=10) as answer:
            assert "HttpOnly; SameSite=Strict" in answer.headers["set-cookie"].replace("Path=/; ", "")
        with pytest.raises(urllib.error.HTTPError, match="401") as refused:
            urllib.request.urlopen(asked, timeout=10)
        refused.value.close()
    finally:
        server.kill()
        out, _ = server.communicate()
        os.close(master)
    assert "code=" not in out.decode()


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
    again = run("token", "revoke", own, "--ledger", ledger)
    listing = f"`{program_name()} token list --ledger {ledger}` lists the tokens"
    assert (again.exit_code, again.stderr) == (1, f"there is no token {own!r} to revoke; {listing}\n")
    for wrong in (("a b",), ("ada", "--scope", "all"), ("ada", "--days", "-1"), ("ada", "--days", "1e12")):
        refused = run("token", "make", *wrong, "--ledger", ledger)
        assert (refused.exit_code, refused.stdout) == (2, ""), wrong


def test_a_server_for_other_machines_must_be_asked_for(tmp_path: Path) -> None:
    refused = run("serve", "--host", "0.0.0.0", "--port", "0", "--ledger", tmp_path / "ledger.db")
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "--allow-remote" in refused.stderr


# ---------------------------------------------------------------- --open


def _browser(folder: Path) -> tuple[Path, dict[str, str]]:
    """Return the file in which a browser notes the addresses that it is given, and the environment with that browser."""
    visited, script = folder / "visited", folder / "browser.sh"
    script.write_text(f'#!/bin/sh\necho "$1" >> {visited}\n')
    script.chmod(0o755)
    given = {"XDG_CONFIG_HOME": str(folder / "config"), "BROWSER": f"{script} %s", "ANTIPHON_MODEL": "scripted"}
    return visited, {**os.environ, **given}


def _visit(visited: Path) -> tuple[str, dict[str, str], str]:
    """Return the page's address, the parameters of its fragment, and the principal whose session the code opens, once."""
    for _ in range(300):
        if visited.exists() and visited.read_text().endswith("\n"):
            break
        time.sleep(0.1)
    url, _, fragment = visited.read_text().splitlines()[-1].partition("/#")
    given = dict(parse_qsl(fragment))
    body = json.dumps({"code": given["code"]}).encode()
    asked = urllib.request.Request(f"{url}/api/session", body, {"Content-Type": "application/json", "Origin": url})
    with urllib.request.urlopen(asked, timeout=10) as answer:
        principal = json.load(answer)["principal"]
        assert "HttpOnly" in answer.headers["set-cookie"]
    with pytest.raises(urllib.error.HTTPError) as again:
        urllib.request.urlopen(asked, timeout=10)
    again.value.close()
    assert again.value.code == 401
    return url, given, principal


@pytest.mark.timeout(90)
def test_run_opens_the_page_of_its_thread_by_a_code_and_keeps_it_until_ctrl_c(tmp_path: Path) -> None:
    visited, environment = _browser(tmp_path)
    arguments = [sys.executable, "-m", "antiphon", "run", "What is 17 * 23?", "--name", "sum", "--open", "--json"]
    process = Forked(arguments, stdout=-1, stderr=-1, stdin=-3, env=environment, cwd=tmp_path)
    try:
        url, given, principal = _visit(visited)
        assert (given["thread"], bool(principal)) == ("sum", True)
        assert process.stdout is not None
        assert process.stderr is not None
        lines = [process.stderr.readline().decode() for _ in range(2)]
        assert f"the page stays at {url} until Ctrl-C" in "".join(lines)
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=20)
        assert (process.returncode, json.loads(out)["status"]) == (0, "completed")
    finally:
        process.kill()
        process.communicate()
    assert not list((tmp_path / "config" / "antiphon").glob("server-*"))


@pytest.mark.timeout(90)
def test_run_finds_the_server_of_its_ledger_and_serve_opens_its_page(tmp_path: Path) -> None:
    """A server of another ledger is not taken; without a browser, the address is printed."""
    visited, environment = _browser(tmp_path)
    servers = []
    try:
        for name in ("other.db", "ledger.db"):
            arguments = [sys.executable, "-m", "antiphon", "serve", "--port", "0", "--open", "--ledger", name]
            servers.append(Forked(arguments, stdout=-1, stderr=-3, env=environment, cwd=tmp_path))
            assert servers[-1].stdout is not None
            line = servers[-1].stdout.readline().decode()
        own = line.split()[-1]
        for _ in range(300):
            if visited.exists() and len(visited.read_text().splitlines()) == 2:
                break
            time.sleep(0.1)
        assert own in [each.partition("/#")[0] for each in visited.read_text().splitlines()]
        without = {**environment, "BROWSER": "", "DISPLAY": "", "WAYLAND_DISPLAY": ""}
        asked = ["run", "What is 17 * 23?", "--open", "--json", "--ledger", "ledger.db"]
        run_ = Forked([sys.executable, "-m", "antiphon", *asked], stdout=-1, stderr=-1, env=without, cwd=tmp_path)
        out, said = run_.communicate(timeout=40)  # it ends by itself: the page is another process's
        assert (run_.returncode, json.loads(out)["status"]) == (0, "completed")
        assert re.search(rf"{own}/#code=[\w-]+&thread=", said.decode())
    finally:
        for each in servers:
            each.kill()
            each.communicate()

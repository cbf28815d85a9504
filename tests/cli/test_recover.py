"""`antiphon resume --all`, `antiphon host --app` and the runs in `antiphon threads`, in the process and as a user does."""

import asyncio
import itertools
import json
import os
import re
import signal
import subprocess
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Thread

import pytest
from tests.cli.running import COMMAND, PLAIN, run
from tests.forked import Forked
from tests.postgres import Server

import antiphon.durable
from antiphon import open_ledger
from antiphon.durable import ledger_run, runs
from antiphon.messages import current_port
from antiphon.patterns import cast
from antiphon.patterns.cast import Pattern, together
from antiphon.runtime import Settings, System, ThreadLimit
from antiphon.service import add_schedule, load_apps

pytest.importorskip("apsw")

SHOP = """
from antiphon.durable import program


async def pay(key):
    with open("payments", "a") as file:
        file.write(key + "\\n")
    return "paid"


@program("desk")
async def desk(run):
    if run.input["amount"] < 0:
        raise ValueError("a negative amount")
    return await run.effect("pay", {"amount": run.input["amount"]}, pay)


programs = [desk]
number = 7
"""


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a user: a module with a program, and a ledger with a run that a dead process has left."""
    name = f"shop_{re.sub('[^a-z0-9]', '', tmp_path.name.lower())}"  # a module is imported once in a process
    module = tmp_path / f"{name}.py"
    module.write_text(SHOP)
    monkeypatch.chdir(tmp_path)
    asyncio.run(_leave(tmp_path, "order-1", 30))
    return module


async def _leave(folder: Path, thread_id: str, amount: int, *, is_paid: bool = False) -> None:
    try:
        async with (
            open_ledger(f"sqlite:///{folder}/antiphon.db") as ledger,
            ledger_run(thread_id, ledger=ledger, name="desk", input={"amount": amount}) as left,
        ):
            if is_paid:
                await left.effect("pay", {"amount": amount}, _paid)
            raise asyncio.CancelledError
    except asyncio.CancelledError:
        pass


@pytest.mark.slow
def test_runs_that_are_left_are_listed_and_then_recovered(shop: Path) -> None:
    listed = run("resume", "--all")
    assert "order-1" in listed.stdout
    assert "antiphon resume --all --app MODULE:NAME" in listed.stderr
    (found,) = json.loads(run("resume", "--all", "--json").stdout)
    assert (found["thread_id"], found["name"], found["status"], found["input"]) == (
        "order-1",
        "desk",
        "waiting",
        {"amount": 30},
    )
    done = run("resume", "--all", "--app", f"{shop.stem}:programs")
    assert done.exit_code == 0
    assert re.search(r"order-1 .*desk .*completed", done.stdout)
    assert Path("payments").read_text() == "order-1/run/pay\n"
    assert "no run to continue" in run("resume", "--all").stderr
    assert "these programs have no run to continue" in run("resume", "--all", "--app", f"{shop.stem}:desk").stderr


BARE = """
import asyncio
import os
import sys

from antiphon import open_ledger
from antiphon.durable import ledger_run


async def pay(key):
    return "paid"


async def main():
    async with open_ledger("sqlite:///antiphon.db") as ledger, ledger_run("bare-1", ledger=ledger) as run:
        await run.effect("pay", {}, pay)
        if "crash" in sys.argv:
            os._exit(9)
    print("done")


if __name__ == "__main__":
    asyncio.run(main())
"""


def _start_bare(*arguments: str) -> tuple[int, str]:
    done = subprocess.run([COMMAND[0], "bare.py", *arguments], check=False, capture_output=True, text=True, env=PLAIN)
    return done.returncode, done.stdout


@pytest.mark.slow
def test_a_program_with_a_bare_run_is_continued_by_starting_it_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has no @program that could be imported. Whatever command lists the run says so first."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bare.py").write_text(BARE)
    assert _start_bare("crash") == (9, "")
    advice = "no process runs it: start program 'bare' again; if that is a @program or an agent, `antiphon resume --all --app "
    assert advice in run("threads").stderr
    assert advice in run("status", "bare-1").stdout
    assert run("resume", "--all").stderr.startswith(
        "start their programs again; those with @program, and agents, also continue with"
    )
    refused = run("resume", "--all", "--app", "bare:main")
    assert (refused.exit_code, "calls ledger_run itself continues when you start it again" in refused.stderr) == (2, True)
    left = run("resume", "bare-1")
    assert (left.exit_code, left.stderr.startswith("only its own program can continue thread bare-1: ")) == (2, True)
    assert advice in left.stderr
    asked = run("run", "Hello?", "--thread", "bare-1", "--model", "scripted")
    assert (asked.exit_code, asked.stderr) == (2, "thread 'bare-1' has an open run of program 'bare', which continues it\n")

    assert run("pause", "bare-1").exit_code == 0
    assert _start_bare()[0] == 1
    assert advice in run("resume", "bare-1").stderr  # the printed command; it is not paused any more
    assert _start_bare() == (0, "done\n")
    completed = run("resume", "bare-1")
    assert (completed.exit_code, "thread bare-1: completed" in completed.stderr) == (0, True)


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("import nothing_of_this_name", "ModuleNotFoundError: No module named 'nothing_of_this_name'"),
        ("raise ValueError('no key')", "ValueError: no key"),
        ("def f(:", "SyntaxError: invalid syntax"),
    ],
)
def test_a_module_that_cannot_be_imported_says_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, reason: str
) -> None:
    monkeypatch.chdir(tmp_path)
    name = f"wrong_{re.sub('[^a-z0-9]', '', tmp_path.name.lower())}"
    (tmp_path / f"{name}.py").write_text(f"\n{code}\n")

    refused = run("resume", "--all", "--app", f"{name}:desk")

    assert refused.exit_code == 2
    assert refused.stderr.startswith(f"module {name!r} cannot be imported: {reason} (")
    assert refused.stderr.endswith(f"{name}.py, line 2)\n")


@pytest.mark.slow
def test_threads_show_the_status_the_owner_and_the_age_of_runs(shop: Path) -> None:
    shown = run("threads")
    assert re.search(r"thread +status +owner +age +messages", shown.stdout)
    assert re.search(r"order-1 +waiting +\d+s", shown.stdout)
    assert "order-1 run run is waiting: no process runs it" in shown.stderr
    (thread,) = json.loads(run("threads", "--json", "--status", "waiting").stdout)
    (found,) = thread["runs"]
    assert (thread["status"], found["status"], found["owner"], found["attempts"]) == ("waiting", "waiting", None, 1)
    assert 0 <= (datetime.now(UTC) - datetime.fromisoformat(found["began_at"])).total_seconds() < 60
    assert json.loads(run("threads", "--json", "--status", "running").stdout) == []
    said = json.loads(run("status", "order-1", "--json").stdout)
    assert said["status"] == "waiting"
    assert said["waits_for"].startswith("run run: no process runs it")
    run("resume", "--all", "--app", f"{shop.stem}:desk")
    (thread,) = json.loads(run("threads", "--json").stdout)
    assert (thread["status"], thread["runs"]) == ("completed", [])
    assert "owner" not in run("threads").stdout


@pytest.mark.slow
def test_advice_names_the_ledger_and_a_difference_has_its_lines(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A person can type the commands as they are shown, in another folder too."""
    monkeypatch.chdir(shop.parent.parent)
    given = ("--ledger", f"{shop.parent}/antiphon.db")
    place = f"--app MODULE:NAME --ledger {given[1]}"
    assert place in run("resume", "--all", *given).stderr
    assert place.replace(given[1], f"sqlite:///{given[1]}") in run("threads", *given).stderr
    assert f"antiphon parked --ledger {given[1]}` lists" in run("settle", "order-1", "x", "--retry", *given).stderr
    monkeypatch.chdir(shop.parent)
    shop.write_text(SHOP.replace('"amount": run', '"cents": run'))
    asyncio.run(_leave(shop.parent, "order-2", 30, is_paid=True))
    for name in ("resume", "threads"):
        shown = run(name, *(("--all", "--app", f"{shop.stem}:desk") if name == "resume" else ()), "--ledger", given[1])
        assert "U+000A" not in shown.stdout + shown.stderr
        assert "argument 'cents' has changed" in shown.stderr


@pytest.mark.slow
def test_the_build_of_an_app_is_that_of_all_its_modules(tmp_path: Path) -> None:
    """A prompt may be in another module than the agent. A host of the mended app must try its runs again."""
    (tmp_path / "its_prompts.py").write_text("PROMPT = 'one'")
    (tmp_path / "its_app.py").write_text(f"from its_prompts import PROMPT\n{SHOP}")
    builds = [load_apps(["its_app:desk"], folder=tmp_path).build]
    builds += [load_apps(["its_app:desk"], folder=tmp_path).build]
    (tmp_path / "its_prompts.py").write_text("PROMPT = 'two'")
    builds += [load_apps(["its_app:desk"], folder=tmp_path).build]
    assert [build == builds[0] for build in builds] == [True, True, False]


@pytest.mark.slow
def test_a_failed_run_is_reported_and_continued_on_demand(shop: Path) -> None:
    asyncio.run(_leave(shop.parent, "order-2", -1))
    done = run("resume", "--all", "--app", f"{shop.stem}:desk", "--json")
    assert done.exit_code == 1
    states = {each["thread_id"]: (each["status"], each["reason"]) for each in json.loads(done.stdout)}
    assert states == {"order-1": ("completed", None), "order-2": ("failed", "ValueError: a negative amount")}
    assert "order-2 run run is failed: ValueError: a negative amount" in run("threads").stderr
    assert json.loads(run("resume", "--all", "--app", f"{shop.stem}:desk", "--json").stdout) == []
    (again,) = json.loads(run("resume", "--all", "--app", f"{shop.stem}:desk", "--failed", "--json").stdout)
    assert again["status"] == "failed"


@pytest.mark.slow
def test_runs_that_would_stop_are_named_before_a_deploy(shop: Path) -> None:
    """G11: `antiphon replay --against --app` exits with 1, writes nothing and pays nothing."""

    async def pay_otherwise() -> None:
        async with (
            open_ledger(f"sqlite:///{shop.parent}/antiphon.db") as ledger,
            ledger_run("order-3", ledger=ledger, name="desk", input={"amount": 3}) as started,
        ):
            await started.effect("pay", {"amount": 4}, _paid)
            raise asyncio.CancelledError

    fine = run("replay", "--against", "--app", f"{shop.stem}:desk")
    assert (fine.exit_code, fine.stderr) == (0, "open runs of these programs: 1; cannot continue: 0\n")
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(pay_otherwise())
    before = Path("antiphon.db").stat().st_size
    checked = run("replay", "--against", "--app", f"{shop.stem}:desk")
    assert checked.exit_code == 1
    assert "order-3, run 'run' stops: " in checked.stderr
    assert "\norder-3 run: argument 'amount' has changed\n" in checked.stderr
    assert f"`antiphon resume order-3 --on-change continue --ledger sqlite:///{shop.parent}/antiphon.db`" in checked.stderr
    assert "open runs of these programs: 2; cannot continue: 1" in checked.stderr
    (one,) = json.loads(run("replay", "order-1", "--against", "--app", f"{shop.stem}:desk", "--json").stdout)
    assert one == {"thread_id": "order-1", "id": "run", "name": "desk", "forecast": "continues", "reason": None}
    assert run("replay", "nowhere", "--against", "--app", f"{shop.stem}:desk").exit_code == 2
    assert (Path("payments").exists(), Path("antiphon.db").stat().st_size) == (False, before)
    # The person decides, and the run is recovered with what is recorded.
    run("resume", "--all", "--app", f"{shop.stem}:desk")
    assert run("resume", "order-3", "--on-change", "continue").exit_code == 0
    assert re.search(r"order-3 .*completed", run("resume", "--all", "--app", f"{shop.stem}:desk").stdout)
    assert Path("payments").read_text() == "order-1/run/pay\n"


async def _paid(key: str) -> str:
    return "paid"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("app", "sentence"),
    [
        ("{shop}", "an app is MODULE:NAME, such as shop.desk:programs, not"),
        ("no_such_shop:desk", "there is no module 'no_such_shop' here; start in the folder that has it"),
        ("{shop}:clerk", "has no 'clerk'"),
        ("{shop}:number", "a int is no program: write @program('name') above an async function, or give an agent"),
    ],
)
def test_an_invalid_app_is_reported(shop: Path, app: str, sentence: str) -> None:
    done = run("resume", "--all", "--app", app.format(shop=shop.stem))
    assert done.exit_code in (1, 2)
    assert sentence in done.stderr


def test_a_host_of_an_app_is_a_host_of_its_own() -> None:
    done = run("host", "--app", "shop:desk", "--model", "scripted")
    assert done.exit_code == 2
    assert "--app is a host of its own" in done.stderr


@pytest.mark.slow
def test_a_host_continues_runs_of_an_app_until_a_signal(shop: Path) -> None:
    """Also one that is left while it runs."""
    command = [*COMMAND, "host", "--app", f"{shop.stem}:programs"]
    host = Forked(command, cwd=shop.parent, env=PLAIN, stdout=subprocess.PIPE, text=True)
    assert host.stdout is not None
    try:
        assert re.fullmatch(r"host \S+ runs run/desk on sqlite:///antiphon\.db\n", host.stdout.readline())
        assert host.stdout.readline() == "order-1 run run completed\n"
        asyncio.run(_leave(shop.parent, "order-2", 5))
        assert host.stdout.readline() == "order-2 run run completed\n"
        host.send_signal(signal.SIGTERM)
        assert host.stdout.read() == "stopping; other hosts take over the threads\nstopped\n"
        assert host.wait(10) == 0
    finally:
        host.kill()
        host.communicate()
    assert Path("payments").read_text().split() == ["order-1/run/pay", "order-2/run/pay"]
    assert asyncio.run(_open_runs(shop.parent)) == 0


async def _open_runs(folder: Path) -> int:
    async with open_ledger(f"sqlite:///{folder}/antiphon.db") as ledger:
        return len(await runs(ledger))


@pytest.mark.parametrize(("options", "limit"), [(["--threads", "2"], 2), ([], 10)])
def test_a_host_of_an_app_runs_at_most_as_many_threads_as_its_option_says(
    options: list[str], limit: int, shop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits: list[int] = []

    async def recorded(ledger: object, programs: object, *, at_once: int = 10, **options: object) -> None:
        limits.append(at_once)

    monkeypatch.setattr(antiphon.durable, "host_runs", recorded)
    done = run("host", "--app", f"{shop.stem}:programs", *options)
    assert (done.exit_code, limits) == (0, [limit]), done.output


@pytest.mark.slow
@pytest.mark.parametrize(("options", "limit"), [(["--threads", "2"], 2), ([], Settings().thread_limit)])
def test_a_host_runs_at_most_as_many_threads_as_its_option_says(
    options: list[str], limit: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit reaches the system; `tests/runtime/test_hosts.py` shows that a system keeps to it."""
    made: list[Settings] = []

    @asynccontextmanager
    async def recorded(*patterns: Pattern, settings: Settings, recover: bool) -> AsyncGenerator[System]:
        made.append(settings)
        async with together(*patterns, settings=settings, recover=recover) as system:
            os.kill(os.getpid(), signal.SIGTERM)  # handled already: it ends the command as soon as the system is there
            yield system

    monkeypatch.setattr(cast, "together", recorded)
    done = run("host", "--model", "scripted", *options, "--ledger", str(tmp_path / "ledger.db"))

    assert done.exit_code == 0, done.output
    assert [getattr(settings.thread_limit, "most", None) for settings in made] == [limit]


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_host_of_two_tenants_runs_the_threads_of_both(postgres: Server, tmp_path: Path) -> None:
    """A schedule starts each. On a busy machine its time may have passed before the host hears of it: then another does."""

    async def ask(number: int) -> None:
        for tenant in left:
            async with open_ledger(postgres.url, tenant=tenant) as ledger:
                at = current_port().now() + timedelta(seconds=1 + number)
                await add_schedule(ledger, f"s{number}", "What is 17 * 23?", at=at)

    def hear() -> None:
        for line in host.stdout or ():
            tenant, _, rest = line.strip().partition(": ")
            if rest.endswith(" completed"):
                left.discard(tenant)

    if not os.environ.get("ANTIPHON_CHAOS"):
        pytest.skip("threads of two tenants in one host are a part of `make chaos`")
    tenants = [f"{tmp_path.name}-{each}" for each in "ab"]
    left, options = {*tenants}, [word for each in (*tenants, tenants[0]) for word in ("--tenant", each)]
    command = [*COMMAND, "host", "--model", "scripted", "--threads", "1", *options, "--ledger", postgres.url]
    host = Forked(command, env=PLAIN, stdout=subprocess.PIPE, text=True)
    try:
        assert host.stdout is not None
        said = [host.stdout.readline().strip() for _ in tenants]
        assert [line.rpartition(" on ")[2] for line in said] == [f"{postgres.url} for tenant {each}" for each in tenants]
        hearing = Thread(target=hear)
        hearing.start()
        for number in itertools.takewhile(lambda _: left, range(20)):
            asyncio.run(ask(number))
            until = time.monotonic() + 4 + number
            while left and time.monotonic() < until:
                time.sleep(0.05)
        assert not left
        host.terminate()
        assert host.wait(60) == 0
        hearing.join(10)
    finally:
        host.kill()
        host.wait()
        assert host.stdout is not None
        host.stdout.close()


@pytest.mark.slow
def test_a_host_of_two_tenants_has_one_limit_and_a_host_for_each(
    postgres: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Settings] = []

    @asynccontextmanager
    async def recorded(*patterns: Pattern, settings: Settings, recover: bool) -> AsyncGenerator[System]:
        made.append(settings)
        async with together(*patterns, settings=settings, recover=recover) as system:
            if len(made) == 2:
                os.kill(os.getpid(), signal.SIGTERM)
            yield system

    monkeypatch.setattr(cast, "together", recorded)
    tenants = [f"{tmp_path.name}-{each}" for each in "ab"]
    options = [word for each in (*tenants, tenants[0]) for word in ("--tenant", each)]
    done = run("host", "--model", "scripted", "--threads", "3", "--drain", "7", *options, "--ledger", postgres.url)

    assert done.exit_code == 0, done.output
    lines = [line.rpartition(" on ")[2] for line in done.output.splitlines() if line.startswith("host ")]
    assert lines == [f"{postgres.url} for tenant {each}" for each in tenants]
    assert [each.drain for each in made] == [7, 7]
    assert made[0].thread_limit is made[1].thread_limit
    assert isinstance(made[0].thread_limit, ThreadLimit)
    assert made[0].thread_limit.most == 3


def test_a_host_of_a_tenant_needs_a_ledger_that_has_tenants(tmp_path: Path) -> None:
    done = run("host", "--model", "scripted", "--tenant", "a", "--ledger", str(tmp_path / "ledger.db"))
    assert (done.exit_code, "has no tenants" in done.output) == (2, True)


def test_a_host_of_no_threads_is_refused() -> None:
    done = run("host", "--threads", "0")
    assert done.exit_code == 2
    assert "greater than or equal to 1" in done.output

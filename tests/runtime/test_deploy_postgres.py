"""A rolling update on PostgreSQL: hosts of an old and a new build side by side, while new threads keep coming (F35, G25)."""

import asyncio
import subprocess
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest
from tests import forked
from tests.postgres import Server
from tests.runtime.counts import count
from tests.runtime.deploy_worker import Write, Written

from antiphon.ledger import Ledger, open_ledger
from antiphon.messages import Message, OptionCallPayload, OptionResultPayload, thaw

pytest.importorskip("asyncpg")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300 if count("F35") < 2 else 3600)]

WORKER = Path(__file__).parent / "deploy_worker.py"
PATIENCE = 120.0
LONG = 600.0
"""Seconds: longer than anything here takes."""
IN_HAND = 8
"""Threads that were posted and are before their `once` effect."""

Record = Callable[[str, object], None]


class Deploy:
    """A ledger, the processes of two builds, and the threads that were posted."""

    def __init__(self, folder: Path, url: str) -> None:
        self._folder, self._url = folder, url
        self._hosts: dict[str, subprocess.Popen[str]] = {}
        self.posted: list[str] = []

    def start(self, name: str, build: str, *kinds: str, drain: float = LONG) -> None:
        """Start a host, and wait until it has registered."""
        arguments = (self._url, self._folder, name, build, drain, *kinds)
        self._hosts[name] = forked.start(WORKER, *arguments, stdout=subprocess.PIPE, text=True)
        assert self._line(name) == "ready"

    def _line(self, name: str) -> str:
        stdout = self._hosts[name].stdout
        assert stdout is not None
        return stdout.readline().strip()

    def tell_to_end(self, name: str) -> list[str]:
        """Send SIGTERM to a host; let its held threads go on when it drains; return what it printed until its end."""
        host = self._hosts[name]
        host.terminate()
        said = [line for _ in range(2) if (line := self._line(name))]
        (self._folder / f"go-{name}").touch()
        assert host.wait(PATIENCE) == 0
        return said

    def end(self) -> None:
        for host in self._hosts.values():
            host.kill()
            host.wait()
            assert host.stdout is not None
            host.stdout.close()

    async def post(self, ledger: Ledger, kind: str) -> str:
        """Post to a new thread of a kind, and return its name."""
        name = f"{kind}-{len(self.posted)}"
        asked = Write(what=name, is_held=kind == "held")
        payload = OptionCallPayload(invocation_id=name, option_name=asked.message_type, arguments=asked.to_data())
        await ledger.post(name, Message(policy="client", payload=payload, to=(f"{kind}/{name}",), lane="control", id=name))
        self.posted.append(name)
        return name

    async def post_until(self, ledger: Ledger, stop: asyncio.Event) -> None:
        """Keep new threads coming: some wait or run at any time, however slow the machine is."""
        while not stop.is_set():
            if len(self.posted) < len(self.begun()) + IN_HAND:
                await self.post(ledger, "author")
            await asyncio.sleep(0.02)

    def held_by(self, *names: str) -> set[str]:
        """Return the threads that wait on one of some hosts."""
        return {thread for what, who, thread in self._witnessed() if what == "held" and who in names}

    def begun(self) -> list[str]:
        """Return the thread of each `once` effect that has begun."""
        return [thread for what, _, thread in self._witnessed() if what == "printed"]

    def busy(self) -> set[str]:
        """Return the hosts that have begun a `once` effect of a thread that is not held."""
        return {who for what, who, thread in self._witnessed() if what == "printed" and thread.startswith("author")}

    def _witnessed(self) -> list[list[str]]:
        path = self._folder / "witness"
        return [line.split() for line in path.read_text().splitlines()] if path.exists() else []


async def _until(what: Callable[[], bool]) -> None:
    """Wait until something is true."""
    async with asyncio.timeout(PATIENCE):
        while not what():  # noqa: ASYNC110 (of processes)
            await asyncio.sleep(0.02)


@contextmanager
def _deploy(folder: Path, url: str) -> Generator[Deploy]:
    folder.mkdir(exist_ok=True)
    deploy = Deploy(folder, url)
    try:
        yield deploy
    finally:
        deploy.end()


@asynccontextmanager
async def _load(deploy: Deploy, ledger: Ledger) -> AsyncGenerator[None]:
    stop = asyncio.Event()
    coming = asyncio.create_task(deploy.post_until(ledger, stop))
    try:
        yield
    finally:
        stop.set()
        await coming


async def _builds(ledger: Ledger, name: str) -> tuple[set[str], set[str]]:
    """Return the builds whose prompts a thread has, and those that have answered."""
    asked, answered = set[str](), set[str]()
    async for record in ledger.read(name):
        payload = record.message.payload
        if isinstance(payload, OptionCallPayload) and "prompt" in str(data := thaw(payload.arguments)):
            asked.add(str(data["arguments"]["prompt"]).partition(":")[0])
        if isinstance(payload, OptionResultPayload) and payload.invocation_id == name:
            answered.add(Written.model_validate(thaw(payload.result)).build)
    return asked, answered


async def _roll(deploy: Deploy, url: str, record: Record) -> None:
    """Replace three old hosts by two new ones under load, and check every thread."""
    async with open_ledger(url) as ledger:
        for name, kinds, drain in (("a", ("author", "held"), LONG), ("b", ("held",), 0.0), ("c", ("author", "held"), LONG)):
            deploy.start(name, "old", *kinds, drain=drain)
        while not all(map(deploy.held_by, "abc")):
            await deploy.post(ledger, "held")
            await asyncio.sleep(0.05)
        held = [each for each in deploy.posted if each.startswith("held")]
        await _until(lambda: {*held} == deploy.held_by(*"abc"))
        async with _load(deploy, ledger):
            for name in "de":
                deploy.start(name, "new", "author", "held")
            await _until(lambda: deploy.busy() == {*"acde"})
            handed_over = deploy.held_by("b")
            assert await asyncio.to_thread(deploy.tell_to_end, "b") == ["stopping; other hosts take over the threads"]
            await _until(lambda: handed_over <= deploy.held_by(*"ac"))
            for name in "ac":
                said = await asyncio.to_thread(deploy.tell_to_end, name)
                assert said == ["stopping; other hosts take over the threads", "draining"], name
            last = len(deploy.posted) + 10
            await _until(lambda: len(deploy.posted) >= last)
        await _have_ended(ledger, deploy.posted)
        await _check(deploy, ledger, {*held}, record)


async def _have_ended(ledger: Ledger, names: list[str]) -> None:
    """Wait until no thread has an open call; each is asked until it has none."""
    left, until = names, time.monotonic() + PATIENCE
    while left := [name for name in left if await ledger.open_calls(name)]:
        found = {name: await ledger.thread(name) for name in left}
        assert all(each is None or each.status != "stopped" for each in found.values()), found
        assert time.monotonic() < until, (found, await ledger.hosts())
        await asyncio.sleep(0.05)


async def _check(deploy: Deploy, ledger: Ledger, held: set[str], record: Record) -> None:
    answered, given_up = Counter[str](), 0
    for name in deploy.posted:
        found = await ledger.thread(name)
        assert found is not None
        assert found.status not in ("failed", "stopped"), name
        given_up += bool(found.unfit)
        begun, ended = await _builds(ledger, name)
        assert (begun, len(ended)) == (ended, 1), name  # the build that has begun it, and no other, has answered it
        assert name not in held or ended == {"old"}
        answered.update(ended)
    assert answered["old"] > len(held)
    assert answered["new"]
    assert sorted(deploy.begun()) == sorted(deploy.posted)  # each `once` effect has begun once
    assert (await ledger.verify()).is_whole
    table = {"threads": len(deploy.posted), "failed": 0, "once effects begun twice": 0, **answered, "given up": given_up}
    record("F35", "; ".join(f"{what}: {value}" for what, value in table.items()))


def test_F35_no_thread_fails_when_hosts_of_a_new_build_replace_the_old_ones(
    postgres: Server, tmp_path: Path, record_property: Record
) -> None:
    """The new build has other prompts. Of the old hosts, one hands its threads over at once, to another old one in the end;
    the others are told to end one by one, and finish what they have."""
    for number in range(count("F35")):
        url = f"{postgres.url}?tenant=deploy-{tmp_path.name}-{number}"
        with _deploy(tmp_path / str(number), url) as deploy:
            asyncio.run(_roll(deploy, url, record_property))

"""A deploy: hosts of an old and of a new version of a program, with other prompts, in real processes on one ledger."""

import asyncio
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests import forked

from antiphon.ledger import ThreadFilter, ThreadSummary, open_ledger
from antiphon.messages import PartsPayload, TextPart

pytest.importorskip("apsw")
pytestmark = pytest.mark.slow

WORKER = Path(__file__).parent / "build_worker.py"
THREADS = 4


class Site:
    """A ledger, and processes on it."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "ledger.db"
        self._children: list[subprocess.Popen[str]] = []

    def start(self, name: str, prompt: str, *, begins: int = 0, seconds: float = 0.0) -> subprocess.Popen[str]:
        child = forked.start(WORKER, self.path, name, prompt, begins, seconds, stdout=subprocess.PIPE, text=True)
        self._children.append(child)
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        return child

    def end(self) -> None:
        for child in self._children:
            child.kill()
            child.wait()
            assert child.stdout is not None
            child.stdout.close()

    async def threads(self) -> list[ThreadSummary]:
        async with open_ledger(f"sqlite:///{self.path}") as ledger:
            return list((await ledger.threads(ThreadFilter(system=False))).threads)

    def wait(self, what: Callable[[list[ThreadSummary]], bool], limit: float = 60.0) -> None:
        async def wait() -> None:
            left = round(limit / 0.1)
            while not what(threads := await self.threads()):
                left -= 1
                assert left, [
                    (each.thread_id, each.status, each.messages, each.open_calls, each.unfit)
                    for each in threads
                    if each.status != "completed"
                ]
                await asyncio.sleep(0.1)

        asyncio.run(wait())

    def answers(self) -> dict[str, str]:
        """Return by thread the last text in it."""

        async def read() -> dict[str, str]:
            async with open_ledger(f"sqlite:///{self.path}") as ledger:
                assert (await ledger.verify()).is_whole
                said: dict[str, str] = {}
                for thread in await self.threads():
                    async for record in ledger.read(thread.thread_id):
                        payload = record.message.payload
                        is_said = record.message.lane == "talk" and isinstance(payload, PartsPayload)
                        if is_said and isinstance(part := payload.parts[0], TextPart):
                            said[thread.thread_id] = part.text
                return said

        return asyncio.run(read())


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path)
    try:
        yield site
    finally:
        site.end()


def test_after_a_deploy_every_thread_ends_on_the_version_that_can_replay_it(site: Site) -> None:
    """The new host takes threads of the old one, and leaves them: they wait until a host of the old version comes."""
    old = site.start("old", "tersely", begins=THREADS, seconds=60)
    site.wait(lambda threads: len(threads) == THREADS and all(each.messages >= 6 for each in threads))
    old.kill()
    old.wait()
    site.start("new", "at length", begins=THREADS)
    site.wait(lambda threads: sum(bool(each.unfit) for each in threads) == THREADS)
    site.wait(lambda threads: sum(each.status == "completed" for each in threads) == THREADS)
    found = asyncio.run(site.threads())
    assert {unfit.build for thread in found for unfit in thread.unfit} == {"at length"}
    site.start("old again", "tersely")
    site.wait(lambda threads: all(each.status == "completed" and not each.open_calls for each in threads))

    answers = site.answers()
    assert len(answers) == 2 * THREADS
    assert all(text == f"by {thread_id.rpartition('-')[0]}" for thread_id, text in answers.items()), answers

"""Hints between the processes of a ledger: messages were committed, or a thread has work for a host.

A hint says "look now". It may be lost, so every reader and every host also looks by itself (see `_signals`).

**Whom a hint concerns.** If every host looked at each hint, a message to one thread would cost a database as many looks as
there are hosts. So a hint about work names the owners of the threads, and only they look. For threads that nobody owns, each
host draws a number from the hint: about sixteen look. If none of them has room, another finds the thread at its next look
without a hint. Hosts learn with each beat how many there are.

**How many are sent.** A process sends the first hint at once, and what follows within 20 milliseconds as one. PostgreSQL
carries a few thousand signals a second for all processes together. If hosts are many, each of them waits longer between two
hints about commits, at most a second: readers of `tail` look that often anyway.
"""

from __future__ import annotations

import asyncio
import secrets  # noqa: TID251 (tells processes apart, also where a test replaces the port)
from collections.abc import Callable
from contextlib import suppress
from typing import Final
from zlib import crc32

from antiphon.ledger._hosts import Host
from antiphon.ledger._signals import Signals
from antiphon.ledger._verbs import CommitSignal

ANYBODY: Final = "*"
"""A thread that nobody owns has work: some hosts look."""
EVERYBODY: Final = "!"
"""All hosts look: only few of them may be able to take the thread, or its owner is not known."""

_COMMITTED, _WORK = b"c", b"w"
"""The first byte of a hint: messages were committed; a thread has work for a host."""
_EVERY: Final = 0.02
_LONGEST: Final = 1.0
"""Seconds between two hints of a process, at least, and at most."""
_FEW: Final = 16
"""Hosts that look when a thread has no owner. Also: up to so many hosts, commits are announced as often as work is."""
_MOST_NAMED: Final = 100
"""Owners that one hint names. A signal of PostgreSQL has at most 8,000 bytes."""


def is_chosen(hint: bytes, key: int, hosts: int) -> bool:
    """Whether a host is one of the few, of so many, that look at a hint about a thread without an owner."""
    return hosts <= _FEW or crc32(b"%b %d" % (hint, key)) % hosts < _FEW


class Hints:
    """The hints that a process sends and hears."""

    def __init__(self, carrier: Signals, subject: str, *, is_scarce: bool = False) -> None:
        """Make them; `is_scarce`: the carrier has room for few signals a second."""
        self.commits = CommitSignal()
        """Notified when messages may have been committed, here or elsewhere."""
        self.work = CommitSignal()
        """Notified when a host of this process may have work."""
        self._carrier, self._subject = carrier, subject
        self._is_scarce = is_scarce
        self._sender = secrets.token_hex(8).encode()
        self._number = 0
        self._whom: dict[str, None] = {}
        self._own: dict[str, int] = {}
        """By instance, the keys of the hosts of this process."""
        self._hosts = 1
        self._of_work = _Announcer(self._tell_work, lambda: _EVERY)
        self._of_commits = _Announcer(self._tell_commits, self._between_commits)
        self._listening: asyncio.Task[None] | None = None

    def note_commit(self) -> None:
        """Tell all readers that messages were committed here."""
        self.commits.notify()
        self._of_commits.begin()

    def note_work(self, whom: str) -> None:
        """Tell hosts that a thread may have work: the key of its owner, `ANYBODY` or `EVERYBODY`."""
        if whom in (ANYBODY, EVERYBODY) or int(whom) in self._own.values():
            self.work.notify()
        self._whom[whom] = None
        self._of_work.begin()

    def note_host(self, host: Host, key: int, hosts: int) -> None:
        """Note that a host of this process has beaten, and is one of so many."""
        self._own[host.instance] = key
        self._hosts = max(1, hosts)

    def forget_host(self, host: Host) -> None:
        """Note that a host of this process has left."""
        self._own.pop(host.instance, None)

    async def hinted(self, after: int, within: float) -> int:
        """See `Ledger.hinted`."""
        self.listen()
        with suppress(TimeoutError):
            async with asyncio.timeout(within):
                await self.work.wait(after)
        return self.work.count

    # ------------------------------------------------------------ sending

    def _tell_work(self) -> None:
        whom, self._whom = list(self._whom), {}
        self._number += 1  # another number is another draw, and no carrier takes it for a signal that was sent before
        named = ",".join(whom) if len(whom) <= _MOST_NAMED else EVERYBODY
        self._carrier.send(self._subject, _WORK + self._sender + f" {self._number} {named}".encode())

    def _tell_commits(self) -> None:
        self._carrier.send(self._subject, _COMMITTED + self._sender)

    def _between_commits(self) -> float:
        return min(_LONGEST, _EVERY * max(1.0, self._hosts / _FEW)) if self._is_scarce else _EVERY

    # ------------------------------------------------------------ hearing

    def listen(self) -> None:
        """Hear hints from now on."""
        if self._listening is None or self._listening.done():
            self._listening = asyncio.create_task(self._listen_until_closed())

    async def _listen_until_closed(self) -> None:
        async with self._carrier.hear(self._subject, self._heard):
            await asyncio.Event().wait()

    def _heard(self, hint: bytes) -> None:
        sender, _, rest = hint[1:].partition(b" ")
        if sender == self._sender:
            return  # its own signal comes back
        if hint[:1] != _WORK:
            self.commits.notify()
        elif self._concerns(hint, rest.rpartition(b" ")[2].decode()):
            self.work.notify()

    def _concerns(self, hint: bytes, named: str) -> bool:
        """Whether a host of this process is to look. Earlier versions name nobody: all look."""
        whom = named.split(",")
        if not named or not self._own or EVERYBODY in whom:
            return True
        own = self._own.values()
        return any(str(key) in whom for key in own) or (
            ANYBODY in whom and any(is_chosen(hint, key, self._hosts) for key in own)
        )

    async def close(self) -> None:
        """Send and hear nothing any more, and wake all who wait."""
        tasks = [each for each in (self._listening, self._of_work.task, self._of_commits.task) if each is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)  # they give their connections back

    def wake_all(self) -> None:
        """Wake all who wait in this process."""
        self.work.notify()
        self.commits.notify()


class _Announcer:
    """Tells something at once, and what comes shortly after it together."""

    def __init__(self, tell: Callable[[], None], pause: Callable[[], float]) -> None:
        self._tell, self._pause = tell, pause
        self._has_news = False
        self.task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Note that there is something to tell."""
        self._has_news = True
        if self.task is None or self.task.done():
            self.task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        while self._has_news:
            self._has_news = False
            self._tell()
            await asyncio.sleep(self._pause())

"""The soak of `make soak` on the PostgreSQL of the tests; a way to the database that can be cut; a clock that jumps."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import tools.soak.soak
from tests.postgres import running_postgres
from tests.runtime.test_hosts_processes import start_host, wait_for_effects
from tools.soak import host as host_program
from tools.soak.soak import HEARTBEAT, ROOT


class Wire:
    """The way from a host to the database, through this process, which can be cut without a word: a partition."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._behind = urlsplit(url).port or 5432
        self._loop = asyncio.new_event_loop()
        self._is_cut = False
        self._port = 0

    @property
    def url(self) -> str:
        return self._url.replace(f":{self._behind}/", f":{self._port}/")

    def cut(self, seconds: float) -> None:
        """Let nothing through for so many seconds; connections stay open."""
        self._is_cut = True
        time.sleep(seconds)
        self._is_cut = False

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(65536):
                while self._is_cut:  # noqa: ASYNC110 (another thread decides)
                    await asyncio.sleep(0.01)
                writer.write(data)
                await writer.drain()
        writer.transport.abort()

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            there = await asyncio.open_connection("127.0.0.1", self._behind)
            await asyncio.gather(self._carry(reader, there[1]), self._carry(there[0], writer))
        writer.transport.abort()

    async def _serve(self, opened: threading.Event, done: asyncio.Event) -> None:
        server = await asyncio.start_server(self._accepted, "127.0.0.1", 0)
        self._port = server.sockets[0].getsockname()[1]
        opened.set()
        await done.wait()
        server.close()
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    @contextmanager
    def open(self) -> Generator[Wire]:
        """Carry connections while the block lasts."""
        opened, done = threading.Event(), asyncio.Event()
        thread = threading.Thread(target=lambda: self._loop.run_until_complete(self._serve(opened, done)))
        thread.start()
        try:
            assert opened.wait(10)
            yield self
        finally:
            self._loop.call_soon_threadsafe(done.set)
            thread.join(10)
            self._loop.close()


_CLOCK = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
static volatile long *offset;
__attribute__((constructor)) static void begin(void) {
    int file = open(getenv("CLOCK_OFFSET"), O_RDONLY);
    offset = mmap(0, sizeof(long), PROT_READ, MAP_SHARED, file, 0);
}
static int real_time(clockid_t id, struct timespec *at) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    return real(id, at);
}
int clock_gettime(clockid_t id, struct timespec *at) {
    int result = real_time(id, at);
    if (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE) at->tv_sec += *offset;
    return result;
}
int gettimeofday(struct timeval *at, void *zone) {
    struct timespec found;
    clock_gettime(CLOCK_REALTIME, &found);
    at->tv_sec = found.tv_sec, at->tv_usec = found.tv_nsec / 1000;
    return 0;
}
time_t time(time_t *at) {
    struct timespec found;
    clock_gettime(CLOCK_REALTIME, &found);
    if (at) *at = found.tv_sec;
    return found.tv_sec;
}
"""


class JumpingClock:
    """The wall clock of processes that are started with `environment`: it differs from that of the machine by an offset."""

    def __init__(self, folder: Path) -> None:
        self._offset = folder / "clock.offset"
        self.jump(0)
        source, library = folder / "clock.c", folder / "clock.so"
        source.write_text(_CLOCK)
        subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
        self.environment = {**os.environ, "LD_PRELOAD": str(library), "CLOCK_OFFSET": str(self._offset)}

    def jump(self, seconds: int) -> None:
        """Set the offset."""
        with os.fdopen(os.open(self._offset, os.O_WRONLY | os.O_CREAT), "wb") as file:  # in place: processes have it mapped
            file.write(seconds.to_bytes(8, sys.byteorder, signed=True))

    def now(self) -> float:
        """Return the time that a process with this clock sees."""
        command = [sys.executable, "-I", "-c", "import time; print(time.time())"]
        return float(subprocess.run(command, env=self.environment, capture_output=True, check=True).stdout)


class Soak(tools.soak.soak.Soak):
    """A soak whose hosts start at once, by another way, or as a broken build."""

    def add_host(self, how: str = "wait", seconds: float = 0.1, url: str | None = None) -> str:
        name = f"h{len(self._children)}"
        child = start_host(url or self.url, self.folder, name, HEARTBEAT, how, seconds)
        self.hosts[name] = self.started(child)
        return name

    def add_host_with_clock(self, clock: JumpingClock, seconds: float) -> str:
        """Start a host that has another wall clock than this process."""
        name = f"h{len(self._children)}"
        arguments = [sys.executable, "-m", host_program.__name__, str(self.folder), name, str(HEARTBEAT), str(seconds)]
        environment = {**clock.environment, "ANTIPHON_LEDGER": self.url}
        child = subprocess.Popen(arguments, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)
        self.hosts[name] = self.started(child)
        return name

    def wait_for_effects(self, number: int, *names: str) -> None:
        """Wait until so many effects have begun on hosts."""
        wait_for_effects(self, number, *names)


@contextmanager
def soaking(folder: Path, *, hosts: int = 2, seed: int = 0) -> Generator[Soak]:
    """Start PostgreSQL and hosts, and end them afterwards."""
    with running_postgres() as server:
        soak = Soak(folder, server, seed=seed)
        try:
            for _ in range(hosts):
                soak.add_host()
            yield soak
        finally:
            soak.end()

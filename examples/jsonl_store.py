"""A store of one's own: threads in a file of JSON Lines. It is a `Log`, the smallest grade of a ledger. Needs no network.

    python examples/jsonl_store.py [log.jsonl]

A line is one append, as it was admitted. Opening the file admits all lines again, and compares the hashes that they must have.
"""

import asyncio
import os
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO

import orjson

from antiphon.errors import LedgerCorruptError, LedgerUnavailableError
from antiphon.ledger import Head, Record, Snapshot, Tailed, ThreadPage, ThreadSummary, record_reward, replay, rewards_of
from antiphon.ledger.stores import (
    Admission,
    AppendRequest,
    LedgerRedaction,
    OpenCalls,
    State,
    admit,
    head_of,
    make_post,
    make_request,
    new_state,
    summary_of,
)
from antiphon.messages import Json, Message, MessageBuilder, loads

REDACTION = LedgerRedaction.of(None)
"""The usual shapes of secrets are removed before a line is written."""


class Thread:
    """A thread in memory; `with_id` and `was_called` are what `admit` asks."""

    def __init__(self, state: State) -> None:
        self.state, self.calls = state, OpenCalls()
        self.records: list[Record] = []
        self.snapshots: list[tuple[int, str, Json]] = []

    def with_id(self, id: str) -> Sequence[Record]:
        return [record for record in self.records if record.message.id == id]

    def was_called(self, is_effect: bool, invocation_id: str) -> bool:
        messages = [record.message for record in self.records if record.message.invocation_id == invocation_id]
        return any((message.kind, message.lane == "effect") == ("option_call", is_effect) for message in messages)


class JsonLinesLog:
    """A `Log` in one file, for one process."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._threads: dict[str, Thread] = {}
        self._commits: list[Record] = []
        self._changed = asyncio.Event()

    @classmethod
    @asynccontextmanager
    async def open(cls, path: Path) -> AsyncGenerator["JsonLinesLog", None]:
        with path.open("a+b") as file:
            log, end = cls(file), 0
            file.seek(0)
            for line in file:
                if line.endswith(b"\n"):
                    log._load(orjson.loads(line))
                    end += len(line)
            file.truncate(end)  # a line that a crash has cut off was never acknowledged
            yield log

    async def append(self, thread_id: str, messages: Iterable[Message], **options: Any) -> tuple[Record, ...]:
        return self._write(make_request(thread_id, messages, redaction=REDACTION, **options))

    async def post(self, thread_id: str, message: Message, *, by: str | None = None) -> Record:
        return self._write(make_post(thread_id, message, redaction=REDACTION, by=by))[0]

    def _write(self, request: AppendRequest) -> tuple[Record, ...]:
        thread = self._thread(request.thread_id, request.micros)
        request = request.for_thread(thread.state.is_redacted)
        admission = admit(thread.state, thread.calls, request, thread)
        if not admission.is_new or request.is_empty:
            return admission.records  # stored already, or there is nothing to store
        line = {
            "thread": request.thread_id,
            "at": request.micros,
            "rows": [row.record.body.decode() for row in admission.rows],
            "status": request.status,
            "pattern": request.pattern,
            "snapshot": None if request.snapshot is None else [request.snapshot[0], orjson.loads(request.snapshot[1])],
            "post": request.is_post and bool(admission.rows[0].message.to),
            "hash": admission.state.hash.hex(),
        }
        try:
            self._file.write(orjson.dumps(line) + b"\n")
            self._file.flush()
            os.fsync(self._file.fileno())  # before the records are returned: they must survive a power cut
        except OSError as exc:  # nobody knows how much of the line is written: the next append must not follow it
            with suppress(OSError):
                self._file.close()
            raise LedgerUnavailableError(f"the file cannot be written ({exc.strerror}); open it again") from exc
        self._take(thread, request, admission)
        return admission.records

    def _load(self, line: dict[str, Any]) -> None:
        request = make_request(
            line["thread"],
            [loads(row.encode(), Message) for row in line["rows"]],
            snapshot=None if line["snapshot"] is None else Snapshot(*line["snapshot"]),
            status=line["status"],
            pattern=line["pattern"],
            allow_foreign=True,  # it was decided before it was written
            is_post=line["post"],
        )
        now = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=line["at"])
        thread = self._thread(request.thread_id, line["at"])
        request = request._replace(now=now, micros=line["at"])
        admission = admit(thread.state, thread.calls, request, thread)
        if admission.state.hash.hex() != line["hash"]:
            raise LedgerCorruptError("a line was altered", request.thread_id, admission.state.seq)
        self._take(thread, request, admission)

    def _take(self, thread: Thread, request: AppendRequest, admission: Admission) -> None:
        thread.state, thread.calls = admission.state, OpenCalls(admission.pairing.open)
        records = [row.record for row in admission.rows]
        thread.records += records
        if request.snapshot is not None:
            thread.snapshots.append((thread.state.seq, request.snapshot[0], orjson.loads(request.snapshot[1])))
        self._threads.pop(request.thread_id, None)
        self._threads[request.thread_id] = thread  # the last changed thread is the last
        self._commits += records
        self._changed.set()
        self._changed = asyncio.Event()

    def _thread(self, thread_id: str, now: int = 0) -> Thread:
        if self._file.closed:
            raise LedgerUnavailableError("the file is closed")
        return self._threads.get(thread_id) or Thread(new_state(thread_id, now, is_redacted=True))

    async def read(
        self, thread_id: str, after: int = 0, before: int | None = None, reverse: bool = False
    ) -> AsyncIterator[Record]:
        records = self._thread(thread_id).records[max(after, 0) : None if before is None else max(before - 1, 0)]
        for record in reversed(records) if reverse else records:
            yield record

    async def tail(self, after: str | None = None, *, thread_id: str | None = None) -> AsyncIterator[Tailed]:
        place = int(after or 0)
        while True:
            changed = self._changed  # before the look: a commit after it ends the wait
            for record in self._commits[place:]:
                place += 1
                if thread_id in (None, record.message.thread_id):
                    yield Tailed(record, str(place))
            await changed.wait()

    async def horizon(self) -> str:
        return str(len(self._commits))

    async def head(self, thread_id: str) -> Head:
        return head_of(self._thread(thread_id).state)

    async def thread(self, thread_id: str) -> ThreadSummary | None:
        thread = self._threads.get(thread_id)
        return None if thread is None else summary_of(thread.state, len(thread.calls))

    async def threads(self, *, page: str | None = None, limit: int = 100) -> ThreadPage:
        names = list(reversed(self._threads))
        begin = 0 if page is None else names.index(page) + 1
        threads = [summary for name in names[begin : begin + limit] if (summary := await self.thread(name)) is not None]
        return ThreadPage(tuple(threads), threads[-1].thread_id if len(names) > begin + limit > 0 else None)

    async def find(
        self, *, invocation_id: str | None = None, correlation_id: str | None = None, thread_id: str | None = None
    ) -> tuple[Record, ...]:
        if (invocation_id is None) == (correlation_id is None):
            raise ValueError("give an invocation_id or a correlation_id, one of the two")
        records = [record for record in self._commits if thread_id in (None, record.message.thread_id)]
        if invocation_id is not None:
            return tuple(record for record in records if record.message.invocation_id == invocation_id)
        return tuple(record for record in records if record.message.correlation_id == correlation_id)

    async def open_calls(self, thread_id: str) -> tuple[Record, ...]:
        thread = self._thread(thread_id)
        return tuple(thread.records[call.seq - 1] for call in thread.calls)

    async def snapshot(self, thread_id: str, fold: str, *, upto: int | None = None) -> tuple[int, Json] | None:
        snapshots = self._thread(thread_id).snapshots
        states = [(seq, state) for seq, name, state in snapshots if name == fold and (upto is None or seq <= upto)]
        return states[-1] if states else None


async def main(path: Path) -> None:
    """Append to a thread, open the file again, and use what needs no more than a `Log`."""
    question = MessageBuilder().add_text("What is a ledger?").to_message()
    answer = MessageBuilder(policy="assistant").add_text("A book that nobody erases.").to_message()
    async with JsonLinesLog.open(path) as log:
        await log.append("talk", [question, answer], status="completed")
        await record_reward(log, "talk", answer.id, 1.0, by="ada")
    async with JsonLinesLog.open(path) as log:
        print([message.text for message in await replay(log, "talk", upto=2)])
        print((await rewards_of(log, "talk"))[answer.id].value, (await log.head("talk")).seq)


if __name__ == "__main__":
    with TemporaryDirectory() as folder:
        asyncio.run(main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(folder) / "log.jsonl"))

"""eventsourcing: its SQLite recorder, given bytes that were made before; so without its mapper and aggregates."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from uuid import NAMESPACE_OID, UUID, uuid5

from eventsourcing.persistence import StoredEvent
from eventsourcing.sqlite import SQLiteApplicationRecorder, SQLiteDatastore

from antiphon import dumps
from benchmarks._messages import Said
from benchmarks.stores.antiphon_ import messages_of

__all__ = ["EventsourcingStore"]


class EventsourcingStore:
    """A recorder of stored events."""

    def __init__(self, folder: Path, said: Sequence[Said]) -> None:
        self._bodies = [dumps(message) for message in messages_of(said)]
        self._datastore = SQLiteDatastore(f"{folder}/events.db")
        self._recorder = SQLiteApplicationRecorder(self._datastore)
        self._recorder.create_table()

    def _events(self, thread: str, first: int, last: int) -> list[StoredEvent]:
        name = _name(thread)
        return [StoredEvent(name, seq, "talk:Said", self._bodies[seq]) for seq in range(first, last)]

    def begin(self, threads: Sequence[str]) -> None:
        pass

    def append(self, thread: str, first: int, last: int) -> None:
        for event in self._events(thread, first, last):
            self._recorder.insert_events([event])

    def fill(self, thread: str, count: int) -> None:
        self._recorder.insert_events(self._events(thread, 0, count))

    def read(self, thread: str) -> object:
        return self._recorder.select_events(_name(thread))

    def close(self) -> None:
        self._datastore.close()


def _name(thread: str) -> UUID:
    return uuid5(NAMESPACE_OID, thread)

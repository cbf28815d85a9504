"""Tree: which cells there are, who supervises whom, and how an actor is made that a message finds missing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from antiphon.errors import UndeliverableError
from antiphon.runtime._address import SYSTEM, Address
from antiphon.runtime._cell import Cell
from antiphon.runtime._props import Props

if TYPE_CHECKING:
    from antiphon.runtime._kernel import Kernel

__all__ = ["Tree"]


class Tree:
    """The cells, in the order in which they were begun."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self.cells: dict[str, Cell] = {}
        self._kinds: dict[str, Props] = {}
        self._children: dict[str, dict[str, None]] = {}
        self._locks: dict[str, tuple[asyncio.Lock, int]] = {}

    def spawn(self, address: str, props: Props) -> Cell:
        """Begin an actor at an address.

        Raises:
            ValueError: somebody lives there, or its supervisor does not exist.
        """
        known = self.cells.get(address)
        if known is not None and known.state != "stopped":
            raise ValueError(f"{address!r} is taken; stop whoever lives there first, or choose another key")
        if props.supervisor and props.supervisor not in self.cells:
            raise ValueError(f"{address!r}: there is no supervisor {props.supervisor!r}; spawn that first")
        cell = self.cells[address] = Cell(self._kernel, address, props)
        if props.supervisor:
            self._children.setdefault(props.supervisor, {})[address] = None
            self.cells[props.supervisor].begin_early()
        return cell

    def register(self, kind: str, props: Props) -> None:
        """Say how actors of a kind are made when the first message for one comes."""
        self._kinds[kind] = replace(props, may_rest=True)

    def at(self, address: str) -> Cell:
        """Return the cell at an address; make one, if its kind is registered.

        Raises:
            UndeliverableError: nobody lives there.
        """
        cell = self.cells.get(address)
        if cell is not None:
            return cell
        props = self._kinds.get(address.partition("/")[0])
        if props is None:
            raise UndeliverableError("nobody lives there; spawn it, or register its kind", address)
        cell = self.spawn(Address.parse(address), props)
        self._kernel.rests.idle(cell)  # perhaps no message follows
        return cell

    def has(self, address: str) -> bool:
        """Whether somebody lives at an address, or would."""
        return address in self.cells or address.partition("/")[0] in self._kinds

    def kinds(self) -> tuple[str, ...]:
        """Return the kinds of all actors but the machinery's own."""
        found = dict.fromkeys((*self._kinds, *(address.partition("/")[0] for address in self.cells)))
        return tuple(kind for kind in found if kind != SYSTEM)

    def children(self, supervisor: str) -> tuple[str, ...]:
        """Return whom an actor supervises, in the order in which they were begun."""
        return tuple(self._children.get(supervisor, ()))

    def adopt(self, address: str, supervisor: str) -> None:
        """Put an actor under another supervisor.

        Raises:
            UndeliverableError: nobody lives there.
        """
        cell = self.at(address)
        self._children.get(cell.props.supervisor, {}).pop(address, None)
        self._children.setdefault(supervisor, {})[address] = None
        cell.props = replace(cell.props, supervisor=supervisor, may_rest=False)  # its kind has another supervisor

    @asynccontextmanager
    async def changing(self, address: str) -> AsyncGenerator[None, None]:
        """Restart or stop an actor one at a time, each wholly."""
        lock, users = self._locks.get(address, (asyncio.Lock(), 0))
        self._locks[address] = lock, users + 1
        try:
            async with lock:
                yield
        finally:
            lock, users = self._locks[address]
            if users == 1:
                del self._locks[address]
            else:
                self._locks[address] = lock, users - 1

    def is_changing(self, address: str) -> bool:
        """Whether an actor is being restarted or stopped."""
        return address in self._locks

    def remove(self, cell: Cell) -> None:
        """Let go of an actor that rests: the next message for it finds it missing."""
        self.forget(cell.address)
        del self.cells[cell.address]

    def forget(self, address: str) -> None:
        """Take an actor that has stopped out of the care of its supervisor."""
        self._children.get(self.cells[address].props.supervisor, {}).pop(address, None)

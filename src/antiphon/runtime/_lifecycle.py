"""How an actor ends and begins anew: halt, restart, stop, rest. Each is safe to do twice.

To halt is to let what is being handled end within the grace that the actor has, and to interrupt it then. What was
interrupted is not lost: in a thread it is delivered to the next actor, outside of one it is answered with an error.

To rest is to be let go of while there is nothing to do. Whoever has a cell in hand while it goes takes the next one.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from antiphon.errors import ActorFailedError, ActorStoppedError
from antiphon.runtime._logs import LOG, about, trail, words

if TYPE_CHECKING:
    from antiphon.runtime._cell import Cell
    from antiphon.runtime._envelope import Envelope

__all__ = ["empty", "halt", "let_go", "rest", "restart", "resume", "stop", "suspend"]


_NOTICE = 1.0
"""Seconds that a handler has at least to notice that it is cancelled."""


async def halt(cell: Cell, grace: float) -> list[Envelope]:
    """Stop handling messages, and return those that were interrupted."""
    suspend(cell)
    if not cell.drains:
        return []
    drains = dict(cell.drains)
    _, late = await asyncio.wait(drains, timeout=cell.kernel.left_of(grace))
    now = dict(cell.drains or drains)  # what a drain handles has changed, perhaps
    handled = {task: envelope for task in late if (envelope := now.get(task)) is not None and envelope.task is not None}
    for task, envelope in handled.items():
        envelope.is_interrupted = True
        task.cancel()
    _, stubborn = await asyncio.wait(handled, timeout=max(grace, _NOTICE)) if handled else ((), ())
    for task in [task for task in handled if task in stubborn]:
        LOG.error("%s: its handler ignores that it is cancelled", cell.address, extra=about(handled[task]))
        error = ActorFailedError("its handler ignores that it is cancelled", cell.address)
        await cell.kernel.post.put_away(handled[task], error)  # what it may still return is ignored
        cell.box.done(handled.pop(task))
    if writing := [task for task in late if not task.done() and task not in stubborn]:
        await asyncio.wait(writing)  # they have an outcome, and write it down
    return list(handled.values())


async def restart(cell: Cell, reason: str) -> None:
    """Drop the actor; the next message is handled by a new one."""
    async with cell.kernel.tree.changing(cell.address):
        cell = _present(cell)
        if cell.state != "stopped":
            await _restart(cell, reason)


async def _restart(cell: Cell, reason: str) -> None:
    interrupted = [] if cell.has_failed else await halt(cell, cell.props.grace)
    await _end(cell, reason)
    cell.incarnation += 1
    cell.drains = cell.beginning = None
    cell.began = cell.kernel.loop.time()
    for envelope in interrupted:
        await _interrupted(cell, envelope, reason)
    for child in cell.kernel.tree.children(cell.address):
        await restart(cell.kernel.tree.at(child), reason)
    if cell.kernel.hooks is not None:
        cell.kernel.hooks.restarted(cell)
    resume(cell)


def suspend(cell: Cell) -> None:
    """Begin with no further message."""
    if cell.state == "active":
        cell.state = "suspended"


def resume(cell: Cell) -> None:
    """Handle messages again."""
    if cell.state == "suspended":
        cell.state, cell.has_failed = "active", False
        if cell.mailbox is not None:
            for _ in range(min(cell.props.concurrency, cell.mailbox.waiting + 1)):
                cell.wake()
        if cell.kernel.tree.children(cell.address):
            cell.begin_early()


async def stop(cell: Cell, reason: str, *, is_shutdown: bool = False) -> None:
    """End an actor for good. What waited is answered with an error; at a shutdown, threads keep it for the recovery."""
    async with cell.kernel.tree.changing(cell.address):
        cell = _present(cell)
        if cell.state != "stopped":
            await _stop(cell, reason, is_shutdown=is_shutdown)


async def _stop(cell: Cell, reason: str, *, is_shutdown: bool) -> None:
    for child in reversed(cell.kernel.tree.children(cell.address)):
        below = cell.kernel.tree.at(child)
        if below.is_untouched:
            below.state = "stopped"
        else:
            await stop(below, reason, is_shutdown=is_shutdown)
    interrupted = await halt(cell, cell.props.grace)
    cell.state = "stopped"
    cell.kernel.tree.forget(cell.address)
    await _end(cell, reason)
    for envelope in interrupted + ([] if cell.mailbox is None else cell.mailbox.close()):
        await _turn_away(envelope, reason, is_shutdown=is_shutdown)


async def rest(cell: Cell) -> None:
    """Let go of an idle actor that wants to know of its end; a message that comes meanwhile is for the next one here."""
    async with cell.kernel.tree.changing(cell.address):
        if cell.state == "active" and cell.is_idle:
            suspend(cell)
            await _end(cell, "it rests")
            _let_go_or_resume(cell)


def _let_go_or_resume(cell: Cell) -> None:
    if cell.is_idle:
        let_go(cell)
    else:
        cell.incarnation += 1
        resume(cell)


def let_go(cell: Cell) -> None:
    """Keep an idle cell no longer: the next message for its address makes a new one."""
    cell.state, cell.actor = "resting", None
    cell.kernel.tree.remove(cell)


def _present(cell: Cell) -> Cell:
    """Return the cell that is at an address now, where this one rests."""
    return cell.kernel.tree.at(cell.address) if cell.state == "resting" else cell


async def empty(cell: Cell, reason: str) -> None:
    """Answer everything that waits with an error."""
    for envelope in [] if cell.mailbox is None else cell.mailbox.close():
        await _turn_away(envelope, reason, is_shutdown=False)


async def _end(cell: Cell, reason: str) -> None:
    actor, cell.actor = cell.actor, None
    if actor is None or cell.has_failed:
        return
    try:
        await actor.stopped(reason)
    except Exception as exc:  # noqa: BLE001 (an actor that cannot end in good order ends all the same)
        fields = about(cell.address, error=exc)
        LOG.error("%s: stopped() raised %s\n%s", cell.address, words(exc), trail(exc), extra=fields)


async def _interrupted(cell: Cell, envelope: Envelope, reason: str) -> None:
    envelope.is_interrupted = False
    post = cell.kernel.post
    if envelope.is_settled:
        pass  # it had come to an end at the same moment
    elif envelope.thread_id is None:
        await post.put_away(envelope, ActorFailedError(f"it was restarted meanwhile: {reason}", cell.address))
    else:
        await post.durable.again.failed(envelope, f"interrupted by a restart: {reason}")
    cell.box.done(envelope)


async def _turn_away(envelope: Envelope, reason: str, *, is_shutdown: bool) -> None:
    error = ActorStoppedError(f"it has stopped: {reason}", envelope.to)
    cell = envelope.cell
    assert cell is not None  # noqa: S101 (it was in its mailbox)
    if is_shutdown and envelope.thread_id is not None:
        await cell.kernel.post.durable.leave(envelope, error)
    else:
        await cell.kernel.post.put_away(envelope, error)

"""Things to say to a ledger, and short ways to ask what it says."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, TypeVar

from antiphon import Message, MessageBuilder, OptionResultBuilder, PartsPayload, TextPart
from antiphon.ledger import Ledger, Record, open_ledger
from antiphon.ledger.sqlite._ledger import SqliteLedger

ResultT = TypeVar("ResultT")


def said(text: str = "hello", **fields: Any) -> Message:
    return Message(policy="user", payload=PartsPayload(parts=(TextPart(text=text),)), **fields)


def called(option: str = "look", **fields: Any) -> Message:
    call = MessageBuilder(policy="agent").add_option_call(option, {"at": "it"}).last_option_call
    return call.model_copy(update=fields)


def answered(call: Message, value: Any = 1) -> Message:
    return OptionResultBuilder.response_to(call).success(value)


async def everything(ledger: Ledger, thread_id: str = "t") -> list[Record]:
    return [record async for record in ledger.read(thread_id)]


def at(path: Path, **options: Any) -> AbstractAsyncContextManager[SqliteLedger]:
    return SqliteLedger.open(path, **options)


def with_ledger(path: Path | None, work: Callable[[Any], Awaitable[ResultT]], **options: Any) -> ResultT:
    """Run something with an open ledger: in memory without a path."""

    async def run() -> ResultT:
        opened: AbstractAsyncContextManager[Any] = open_ledger("memory:", **options) if path is None else at(path, **options)
        async with opened as ledger:
            return await work(ledger)

    return asyncio.run(run())


def fill(path: Path, threads: int = 3, turns: int = 4, **options: Any) -> None:
    """Make a ledger with some threads, each of turns that ask, call and answer."""

    async def work(ledger: Ledger) -> None:
        for number in range(threads):
            for turn in range(turns):
                call = called()
                await ledger.append(f"t{number}", [said(f"{number} asks {turn}"), call, answered(call, {"turn": turn})])

    with_ledger(path, work, **options)

"""Ledgers for the commands to work on: real files, filled as a user would fill them, or by hand."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

from tests.cli.running import CHAT, run, save

from antiphon import Message, MessageBuilder, OptionResultBuilder, Usage
from antiphon.ledger import Ledger, open_ledger

ResultT = TypeVar("ResultT")


def with_ledger(url: str, work: Callable[[Ledger], Awaitable[ResultT]]) -> ResultT:
    """Do something in a ledger, behind the back of the command line."""

    async def within() -> ResultT:
        async with open_ledger(url) as ledger:
            return await work(ledger)

    return asyncio.run(within())


def append(url: str, thread_id: str, *messages: Message, **options: Any) -> None:
    with_ledger(url, lambda ledger: ledger.append(thread_id, messages, **options))


def with_chat(folder: Path, name: str = "chat") -> str:
    """Return the URL of a fresh ledger that has the tool conversation of the tests as a thread."""
    url = f"sqlite:///{folder}/ledger.db"
    given = ("import", save(folder / "chat.json", CHAT), "--from", "marsys", "--thread", name)
    assert run(*given, "--ledger", url).exit_code == 0
    return url


def text(words: str, policy: str = "user", **fields: Any) -> Message:
    message = MessageBuilder(policy=policy).add_text(words).to_message()
    return message.model_copy(update=fields) if fields else message


def priced(words: str, cost: str) -> Message:
    return text(words, policy="assistant", usage=Usage(input_tokens=10, output_tokens=5, cost=cost))


def exchange(step: int, city: str) -> tuple[Message, Message]:
    """Return a call and its result."""
    asked = MessageBuilder(policy="assistant", step_num=step)
    asked.add_option_call("get_weather", {"city": city})
    (call,) = asked.option_calls
    return call, OptionResultBuilder.response_to(call).success({"sky": f"grey over {city}"})

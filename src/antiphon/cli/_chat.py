"""`antiphon chat`: a thread with a turn for each line that is typed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from antiphon.cli._chains import (
    INTERRUPTED,
    ConfigOption,
    ModelOption,
    QuietOption,
    Seen,
    chosen_model,
    opened,
    said_at_end,
    watched,
)
from antiphon.cli._ledger import LedgerOption
from antiphon.cli._output import deliver
from antiphon.cli._typed import Typed

if TYPE_CHECKING:
    from antiphon.patterns.postchain import ChainResult, PostChain

__all__ = ["chat"]


def chat(
    *,
    model: ModelOption = None,
    thread: Annotated[
        str | None, typer.Option("--thread", metavar="THREAD", help="The thread to continue; default: a new one.")
    ] = None,
    user: Annotated[str, typer.Option("--user", metavar="NAME", help="The owner of the thread.")] = "user",
    config: ConfigOption = None,
    is_quiet: QuietOption = False,
    ledger: LedgerOption = None,
) -> None:
    """Chat: each input line is a turn of one thread. Ctrl-C pauses the turn and ends the chat."""

    async def work(chain: PostChain) -> Any:
        thread_id, last, typed = thread, None, Typed()
        while (line := await typed.line()) is not None:
            last = await _turn(chain, thread_id, line, user, is_shown=not is_quiet)
            thread_id = last[0].thread_id
            if last[1].was_interrupted:
                break
        return last

    chosen = chosen_model(model)
    last = opened(ledger, work, model=chosen, config=config, thread=thread, create=thread is None)
    if last is None:
        return
    result, seen = last
    if not is_quiet:
        said_at_end(result, seen, ledger)
    if seen.was_interrupted:
        raise typer.Exit(INTERRUPTED)


async def _turn(chain: PostChain, thread_id: str | None, line: str, user: str, *, is_shown: bool) -> tuple[ChainResult, Seen]:
    """Ask, in the thread or in a new one, and print the answer."""
    own = thread_id or await chain.create(line, user_id=user)

    async def begin() -> None:
        await chain.start(own, line if thread_id else None)

    seen = await watched(chain, own, begin, is_shown=is_shown)
    result = await chain.result(own)
    deliver(f"{result.response or result.error_message or result.status}\n".encode(), None)
    return result, seen

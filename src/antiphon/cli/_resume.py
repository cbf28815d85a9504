"""`antiphon resume`: a thread that was paused, or whose process is gone, goes on where it was."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import typer

from antiphon.cli._chains import ConfigOption, ModelOption, QuietOption, check_model, opened, show_result, watched
from antiphon.cli._ledger import JsonOption, LedgerOption, ThreadArgument, with_ledger
from antiphon.cli._screen import fail, note

if TYPE_CHECKING:
    from antiphon.ledger import Ledger
    from antiphon.patterns.postchain import PostChain
    from antiphon.protocol import Phase

__all__ = ["resume"]


def resume(
    thread: ThreadArgument,
    *,
    model: ModelOption = None,
    config: ConfigOption = None,
    is_quiet: QuietOption = False,
    for_programs: JsonOption = False,
    ledger: LedgerOption = None,
) -> None:
    """Continue a thread where it stopped. Finished steps do not run again. Started phases keep their model."""

    async def work(chain: PostChain) -> Any:
        life = await chain.life(thread)
        if life.is_over:
            fail(f"thread {thread} is {life.status}; `antiphon run --thread {thread} QUESTION` asks something more")

        async def begin() -> None:
            await (chain.start(thread) if life.status == "created" else chain.resume(thread))

        seen = await watched(chain, thread, begin, is_shown=not (is_quiet or for_programs))
        return await chain.result(thread), seen

    if model is not None:
        check_model(model)
    with_ledger(ledger, partial(_leave_to_program, thread=thread))
    result, seen = opened(ledger, work, model=model, config=config, thread=thread)
    show_result(result, seen, ledger, for_programs=for_programs, is_quiet=is_quiet)


async def _leave_to_program(ledger: Ledger, *, thread: str) -> None:
    """Have a program go on with a thread that only it can, and end; if it does not run now, it will when it does."""
    try:
        from antiphon.patterns.postchain import LIFE, ask_owner  # noqa: PLC0415 (only where it is used)
    except ModuleNotFoundError:
        return  # which is said where the thread is opened

    life = await ledger.replay(thread, LIFE.fold())
    own = None if life.is_over else await _own_tools(ledger, thread, life.current_phase)
    if own is None:
        return
    answer = await ask_owner(ledger, {"type": "RESUME_THREAD", "data": {"thread_id": thread}}, or_here=False)
    if answer["type"] != "ERROR":
        note(f"thread {thread} goes on in the program that runs it")
        raise typer.Exit
    if answer["data"]["error_code"] != "TIMEOUT":
        fail(answer["data"]["error_message"])
    reason = f"its {life.current_phase} phase uses {own}, which only the program has that the thread is of"
    fail(f"{reason}: it goes on there as soon as that is started again", code=2)


async def _own_tools(ledger: Ledger, thread: str, phase: Phase | None) -> str | None:
    """Return what the phase that a thread is in the middle of has of tools that only somebody's own program has."""
    from antiphon.agents.tools import BUILTIN_TOOLS  # noqa: PLC0415 (only where it is used)
    from antiphon.patterns.postchain import GO_ON_WITH, prepared_agent  # noqa: PLC0415

    agent = await prepared_agent(ledger, thread, phase)
    if agent is None:
        return None
    if toolkit := agent.model_extra.get("toolkit"):
        return f"the toolkit {toolkit!r}"
    own = [name for name in agent.tools or () if name not in (*BUILTIN_TOOLS, GO_ON_WITH)]
    return repr(own[0]) if own else None

"""`antiphon resume`: a thread that was paused, or whose process is gone, goes on where it was."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from antiphon.cli._chains import ConfigOption, ModelOption, QuietOption, opened, show_result, watched
from antiphon.cli._ledger import JsonOption, LedgerOption, ThreadArgument
from antiphon.cli._screen import fail

if TYPE_CHECKING:
    from antiphon.patterns.postchain import PostChain

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
    """Go on with a thread where it was: what it has done is not done again. Its phases keep the model they have begun with."""

    async def work(chain: PostChain) -> Any:
        life = await chain.life(thread)
        if life.is_over:
            fail(f"thread {thread} is {life.status}; `antiphon run --thread {thread} QUESTION` asks something more")
        await _check_tools(chain, thread, life.current_phase)

        async def begin() -> None:
            await (chain.start(thread) if life.status == "created" else chain.resume(thread))

        seen = await watched(chain, thread, begin, is_shown=not (is_quiet or for_programs))
        return await chain.result(thread), seen

    result, seen = opened(ledger, work, model=model, config=config)
    show_result(result, seen, ledger, for_programs=for_programs, is_quiet=is_quiet)


async def _check_tools(chain: PostChain, thread: str, phase: str | None) -> None:
    """Refuse to go on in the middle of a phase that has tools which only somebody's own program has."""
    from antiphon.agents.tools import BUILTIN_TOOLS  # noqa: PLC0415 (only where it is used)
    from antiphon.messages import OptionResultPayload, thaw  # noqa: PLC0415

    async for record in chain.ledger.read(thread, reverse=True):
        payload = record.message.payload
        if not isinstance(payload, OptionResultPayload) or payload.option_name != "PREPARE_CONTEXT" or payload.is_error:
            continue
        prepared: Any = thaw(payload.result)
        own = [name for name in prepared["context"]["tools"] if name not in BUILTIN_TOOLS]
        if prepared["phase_type"] == phase and own:
            where = f"have it go on there, by `await chain.resume({thread!r})`"
            fail(f"its {phase} phase uses {own[0]!r}, which only the program has that the thread is of: {where}", code=2)
        return

"""`antiphon run`: a question, taken through the six phases of a thread."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from antiphon.cli._chains import ConfigOption, ModelOption, QuietOption, chosen_model, opened, show_result, watched
from antiphon.cli._knowledge import read_document
from antiphon.cli._ledger import JsonOption, LedgerOption
from antiphon.cli._screen import fail
from antiphon.cli._teams import Where, run_team

if TYPE_CHECKING:
    from antiphon.patterns.postchain import PostChain

__all__ = ["run"]


def run(
    question: Annotated[str, typer.Argument(metavar="QUESTION", help="The question.")],
    *,
    model: ModelOption = None,
    documents: Annotated[
        list[Path] | None, typer.Option("--add", metavar="FILE", help="A document that agents may search; repeatable.")
    ] = None,
    thread: Annotated[
        str | None,
        typer.Option("--thread", metavar="THREAD", help="The thread to ask in, as its next turn."),
    ] = None,
    user: Annotated[str, typer.Option("--user", metavar="NAME", help="The owner of the thread.")] = "user",
    config: ConfigOption = None,
    team: Annotated[
        Path | None, typer.Option("--team", metavar="FILE", help="Run the team of this file instead of the six phases.")
    ] = None,
    files: Annotated[
        Path | None, typer.Option("--files", metavar="FOLDER", help="With --team: the folder that the team works on.")
    ] = None,
    is_quiet: QuietOption = False,
    for_programs: JsonOption = False,
    ledger: LedgerOption = None,
) -> None:
    """Answer a question in six phases. Progress goes to stderr, the answer to stdout. Ctrl-C pauses the thread."""
    if not question.strip():
        fail("the question is empty; ask something", code=2)
    if team is not None:
        _check_none_given({"--add": documents, "--config": config}, "without --team: a team's file says what it uses")
        where = Where(files, model, thread, ledger)
        run_team(team, question, where, for_programs=for_programs, is_quiet=is_quiet)
        return
    _check_none_given({"--files": files}, "with --team; --add FILE gives documents to six phases")
    texts = {str(path): read_document(path) for path in documents or ()}
    is_shown = not (is_quiet or for_programs)

    async def work(chain: PostChain) -> Any:
        await _add(chain, texts)
        thread_id = thread or await chain.create(question, user_id=user)

        async def begin() -> None:
            await chain.start(thread_id, question if thread else None)

        seen = await watched(chain, thread_id, begin, is_shown=is_shown)
        return await chain.result(thread_id), seen

    chosen = chosen_model(model)
    result, seen = opened(ledger, work, model=chosen, config=config, thread=thread, create=thread is None)
    show_result(result, seen, ledger, for_programs=for_programs, is_quiet=is_quiet)


def _check_none_given(options: dict[str, Any], goes: str) -> None:
    """Refuse options that would do nothing here."""
    for name, value in options.items():
        if value:
            fail(f"{name} goes {goes}", code=2)


async def _add(chain: PostChain, texts: dict[str, str]) -> None:
    from antiphon.agents.tools import KnowledgeBase  # noqa: PLC0415 (only where it is used)

    for source, text in texts.items():
        await KnowledgeBase(chain.ledger).add(source, text)

"""Fill a ledger to look at: the three example teams, a question in six phases, an approval that waits, a parked call.

    python -m tools.demo [FOLDER]    makes FOLDER/serve.db, if it is not there; by default in .antiphon

All of it is offline: the models are scripted. FOLDER gets the files of the team that waits for a person too: the thread can be
resumed after its call was approved.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from antiphon import service
from antiphon.agents import LedgerDurability
from antiphon.durable import ledger_run
from antiphon.errors import ParkedError
from antiphon.ledger import Ledger, open_ledger

EXAMPLES: Final = Path(__file__).parent.parent / "examples"
TEAMS: Final = {
    "analyse_csv": "How are the sales?",
    "review_markdown": "Review the pages.",
    "triage_mailbox": "What is in the mailbox?",
}
"""By folder of the example: the task of its team."""


async def fill(ledger: Ledger, folder: Path) -> None:
    """Write all threads of the demonstration."""
    async with service.open_chain(ledger, model="scripted") as chain:
        await chain.ask("What is 17 * 23?", name="six-phases")
        await chain.ask("And twice that?", thread_id="six-phases")
    for name, task in TEAMS.items():
        await service.run_team(ledger, EXAMPLES / name / "team.toml", task, thread_id=name.replace("_", "-"))
    with suppress(ParkedError):  # it waits for a person
        await service.run_team(ledger, careful_team(folder), "May I see the totals?", thread_id="waits-for-approval")
    await park(ledger, "parked-payment")


def careful_team(folder: Path) -> Path:
    """Copy the team that analyses a table, with a rule that a person approves each sum; return its file."""
    place = folder / "careful"
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(EXAMPLES / "analyse_csv", place)
    team = place / "team.toml"
    team.write_text(team.read_text().replace('files = "."', 'files = "."\napprovals = ["csv_totals"]'))
    return team


async def park(ledger: Ledger, thread_id: str) -> None:
    """Have a process end in the middle of a payment, and another one find that nobody knows whether it was made."""

    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        if len(messages) == 1:
            return ModelResponse([ToolCallPart("pay", {"amount": 30, "to": "hotel"}, tool_call_id="call-1")])
        return ModelResponse([TextPart("The hotel is paid.")])

    agent = Agent(FunctionModel(answer, model_name="scripted"), name="clerk", capabilities=[LedgerDurability(ledger)])

    @agent.tool_plain
    async def pay(amount: int, to: str) -> str:
        raise asyncio.CancelledError  # as if the process were gone before the bank's answer was there

    for expected in (asyncio.CancelledError, ParkedError):
        with suppress(expected):
            async with ledger_run(thread_id, ledger=ledger):
                await agent.run("Pay the hotel.")


def main(folder: Path) -> None:
    place, part = folder / "serve.db", folder / "serve.part.db"
    if place.exists():
        return
    print("filling a ledger with examples ...", flush=True)
    folder.mkdir(parents=True, exist_ok=True)
    for each in folder.glob(f"{part.name}*"):  # of one that was interrupted
        each.unlink()
    logging.disable()
    os.environ.setdefault("PYDANTIC_AI_NO_BANNER", "1")
    asyncio.run(_fill(part, folder))
    part.rename(place)


async def _fill(place: Path, folder: Path) -> None:
    async with open_ledger(f"sqlite:///{place}", create=True) as ledger:
        await fill(ledger, folder)


if __name__ == "__main__":
    main(Path(*sys.argv[1:] or [".antiphon"]))

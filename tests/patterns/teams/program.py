"""A program for `tests.patterns.killed`: a team that plans, steps side by side, runs a script, looks and writes."""

from typing import Any

from tests.patterns.killed import HISTORY, Witness, handed_rows, serve
from tests.patterns.teams.crews import agent, manager, phase, plan, team_of

from antiphon.agents.toolkit import Toolkit
from antiphon.dialects.agent_framework import ScriptStep
from antiphon.ledger import Ledger

SCRIPT = (
    ScriptStep(name="Look", worker="cleo", tool_name="look", args={"place": "yard"}),
    ScriptStep(name="Write", worker="cleo", tool_name="write", args={"text": "yard"}),
    ScriptStep(name="Think", worker="ada", tool_name="look", execution_mode="guided"),
)


def _kit(witness: Witness) -> Toolkit:
    toolkit = Toolkit()

    @toolkit.tool(effects="none")
    async def look(place: str) -> str:
        """Look somewhere."""
        await witness.start(f"look {place}")
        return f"the {place} is there"

    @toolkit.tool(effects="once")
    async def write(text: str) -> str:
        """Write something down."""
        await witness.start(f"write {text}")
        return f"{text} is written"

    return toolkit


def _worker(name: str) -> Any:
    acts = [("look", {"place": name}), ("write", {"text": name})]
    return lambda prompt, spoken: acts if spoken == 0 else f"{name} is through"


def _steps(prompt: str, spoken: int) -> Any:
    steps = [{"name": name, "worker": name, "task": f"Go, {name}."} for name in ("ada", "bob")]
    return {"steps": steps, "parallel": True} if "Break the phase" in prompt else "both are through"


def _plan(prompt: str, spoken: int) -> Any:
    return plan(phase("pair", "Go."), phase("script", "Tidy up.")) if "Plan in phases" in prompt else "All is done."


async def program(ledger: Ledger, witness: Witness) -> str:
    parts = {"orchestrator": _plan, "pair": _steps, "script": "tidied", **{name: _worker(name) for name in ("ada", "bob")}}
    workers = [agent(name, "look", "write") for name in ("ada", "bob", "cleo")]
    managers = [manager("pair", "ada", "bob"), manager("script", "ada", "cleo", script=SCRIPT)]
    async with team_of(parts, workers, managers, ledger=ledger, toolkit=_kit(witness)) as team:
        outcome = await team.run("Go.", thread_id="t", message_history=HISTORY)
        entries = await team.store.get_messages("t")
    ends = sorted(f"{each['agent_key']}: {each['type']}" for each in entries if each["type"] in {"final", "observation"})
    return f"{outcome.status} {outcome.response} {ends} {await handed_rows(ledger, 't')}"


if __name__ == "__main__":
    serve(program)

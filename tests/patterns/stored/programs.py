"""Seven programs, one for each way of working, that run on the old commit and on this one.

`make.py` runs them on the old commit and stores the ledgers that they leave behind. `test_stored.py` runs them on those
ledgers. So this file imports only names that both commits have, and it has no import of the tests. Where a call has another
form since, the program chooses by `IS_EARLIER`; it means the same.

A program is `async def NAME(ledger, witness, approval) -> str`. It opens a pattern, does its work in threads with fixed ids,
and returns the results as text. With `approval`, `pay` waits for a person. A program whose thread must wait for a person
raises `ParkedError`. A tool reports each start to the witness, so that a test counts starts without the ledger.
"""

import asyncio
import inspect
import os
import re
import signal
from collections.abc import Awaitable, Callable, Iterable
from datetime import timedelta
from typing import Any

from pydantic_ai import Agent

from antiphon.agents import LedgerDurability, Toolkit, ledger_run
from antiphon.agents.models import Call, Rule, Script, ScriptedModel, Turn
from antiphon.dialects.agent_framework import ScriptStep
from antiphon.dialects.atlas import StructuredMessage
from antiphon.errors import ParkedError
from antiphon.patterns.cast import AgentSpec, Cast, Patience, left_open
from antiphon.patterns.options import Executor, FirstSuccess, Options, under
from antiphon.patterns.peers import Peers, PeerSpec, star
from antiphon.patterns.postchain import ChainConfig, PostChain
from antiphon.patterns.teams import ManagerSpec, Team
from antiphon.patterns.workers import Workers
from antiphon.protocol import AgentConfig, Reply, Request
from antiphon.runtime import Actor, Context, Settings, System, handles

QUICK = Patience(attempts=1, backoff=0)
IS_EARLIER = "controller_name" not in inspect.signature(Workers).parameters
"""Whether this is commit 1ac6e0a: there the name of a controller was `name`."""
WHO = "ada"
"""The person that answers questions."""


class Witness:
    """A file with a line for each start of a tool; at the place `in NAME`, the process is killed when the tool starts."""

    def __init__(self, path: str, place: str = "") -> None:
        self._path = path
        self._place = place

    async def start(self, tool: str, what: object) -> None:
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(descriptor, f"{tool} {what}\n".encode())
        os.fsync(descriptor)
        os.close(descriptor)
        if self._place == f"in {tool}":
            os.kill(os.getpid(), signal.SIGKILL)
        await asyncio.sleep(0)


Program = Callable[[Any, Witness, bool], Awaitable[str]]

# ---------------------------------------------------------------- tools and models


def tools_for(witness: Witness) -> tuple[Any, Any, Any]:
    """Return the three tools: one without effects, one that may be repeated under its key, one that must not be repeated."""

    async def look(place: str) -> str:
        """Look somewhere."""
        await witness.start("look", place)
        return f"the {place} is there"

    async def reserve(what: str) -> str:
        """Reserve something."""
        await witness.start("reserve", what)
        return f"{what} is reserved"

    async def pay(what: str) -> str:
        """Pay for something."""
        await witness.start("pay", what)
        return paid(what)

    return look, reserve, pay


def paid(what: str) -> str:
    """Return the result of `pay`; a person who settles it records the same."""
    return f"{what} is paid"


def toolkit_for(witness: Witness, approval: bool) -> Toolkit:
    # A stored question must stay valid for as long as the test is kept.
    toolkit = Toolkit(approvers=[WHO], approval_expires=timedelta(days=36500))
    look, reserve, pay = tools_for(witness)
    toolkit.add(look, effects="none")
    toolkit.add(reserve, effects="idempotent")
    toolkit.add(pay, effects="once", approval=approval)
    return toolkit


def says(text: str) -> Turn:
    return Turn(text=text)


def calls(*wanted: tuple[str, dict[str, Any]]) -> Turn:
    return Turn(calls=tuple(Call(tool=tool, arguments=arguments) for tool, arguments in wanted))


def model(*rules: Rule) -> ScriptedModel:
    return ScriptedModel(Script(name="stored", rules=(*rules, Rule(turns=(says("nothing to do"),)))))


def acting(who: str, *tools: str, what: str = "{what}") -> Rule:
    """Return what an agent does that is told `WHO: WHAT`: it calls its tools at once, then `look` again, and answers."""
    first = [(tool, {"place" if tool == "look" else "what": what}) for tool in tools]
    results = ", ".join(f"{{result_{number}}}" for number in range(1, len(tools) + 2))
    return Rule(
        when=rf"{who}: (?P<what>\w+)",
        tools=tuple(tools),
        turns=(calls(*first), calls(("look", {"place": "end"})), says(f"{who}: {results}")),
    )


# ---------------------------------------------------------------- an agent


async def agent(ledger: Any, witness: Witness, approval: bool) -> str:
    """A durable agent with tools of its own and of a toolkit, that has a second agent work for it."""
    toolkit = toolkit_for(witness, approval)
    toolkit.grant("helper")
    script = model(
        Rule(
            when="clerk",
            turns=(
                calls(("note", {"text": "tea"}), ("reserve", {"what": "tea"}), ("pay", {"what": "tea"})),
                calls(("ask_helper", {"about": "milk"})),
                says("{result_1}, {result_2}, {result_3}; {result_4}"),
            ),
        ),
        acting("helper", "look", "pay"),
    )
    helper = Agent(script, name="helper", capabilities=[LedgerDurability(ledger), toolkit.capability("helper")])
    for tool in ("reserve", "pay"):
        toolkit.grant("clerk", tool)
    clerk = Agent(script, name="clerk", capabilities=[LedgerDurability(ledger), toolkit.capability("clerk")])

    @clerk.tool_plain(metadata={"antiphon": {"effects": "none"}})
    async def note(text: str) -> str:
        """Note something."""
        await witness.start("note", text)
        return f"{text} is noted"

    @clerk.tool_plain(metadata={"antiphon": {"effects": "none"}})
    async def ask_helper(about: str) -> str:
        """Have the helper do something."""
        return str((await helper.run(f"helper: {about}")).output)

    async with ledger_run("order", ledger=ledger):
        return str((await clerk.run("clerk: buy")).output)


# ---------------------------------------------------------------- actors


class Paid(Reply, frozen=True, type="STORED_PAID"):
    receipt: str


class Pay(Request[Paid], frozen=True, type="STORED_PAY"):
    what: str


class Bought(Reply, frozen=True, type="STORED_BOUGHT"):
    receipt: str


class Buy(Request[Bought], frozen=True, type="STORED_BUY"):
    what: str


class Shop(Actor):
    """Looks, and has two banks paid."""

    def __init__(self, witness: Witness) -> None:
        self._look, self._reserve, _ = tools_for(witness)

    @handles
    async def buy(self, buy: Buy, context: Context) -> Bought:
        seen = await context.effect("look", {"place": buy.what}, lambda key: self._look(buy.what), effects="none")
        kept = await context.effect("reserve", {"what": buy.what}, lambda key: self._reserve(buy.what), effects="idempotent")
        asked = [context.ask(f"bank/{number}", Pay(what=f"{buy.what}{number}"), within=600) for number in (1, 2)]
        async with left_open(context):  # else "a bank waits for a person" would be the answer for good
            receipts = [each.receipt for each in await asyncio.gather(*asked)]
        return Bought(receipt="; ".join([seen, kept, *receipts]))


class Bank(Actor):
    """Pays, which must not happen twice."""

    def __init__(self, witness: Witness) -> None:
        _, _, self._pay = tools_for(witness)

    @handles
    async def pay(self, pay: Pay, context: Context) -> Paid:
        return Paid(receipt=await context.effect("pay", {"what": pay.what}, lambda key: self._pay(pay.what), effects="once"))


async def actors(ledger: Any, witness: Witness, approval: bool) -> str:
    """A shop that pays at two banks, in two threads. Actors without a toolkit have no approvals."""
    assert not approval
    async with System(ledger, settings=Settings(within=600)) as system:
        system.register("shop", lambda: Shop(witness), grace=60)
        system.register("bank", lambda: Bank(witness), grace=60)
        await system.recover()
        asked = [
            system.ask("shop/1", Buy(what=what), thread_id=f"thread-{what}", id=f"buy-{what}") for what in ("tea", "milk")
        ]
        answers = await asyncio.gather(*asked, return_exceptions=True)  # a thread that waits does not stop the other
    for answer in answers:
        if isinstance(answer, BaseException):
            raise answer
    return " || ".join(answer.receipt for answer in answers if isinstance(answer, Bought))


# ---------------------------------------------------------------- options


async def options(ledger: Any, witness: Witness, approval: bool) -> str:
    """A librarian who searches, pays, races two options, and calls another policy and an agent."""
    toolkit = toolkit_for(witness, approval)
    for policy in ("librarian", "helper"):
        toolkit.grant(policy)
    given = Options(toolkit)
    critic = AgentSpec(name="critic", tools=("look", "reserve"))
    script = model(acting("critic", "look", "reserve"))

    @given.option(effects="none")
    async def far_shelf() -> str:
        """Look on a shelf where the search never ends."""
        await asyncio.Event().wait()
        return "never"

    def values(observations: Any) -> list[Any]:
        found = [message.payload for message in observations.results()]
        return [each.result or each.error_type for each in found]

    def helper(observations: Any, choices: Any) -> Any:
        """Help with a task."""
        if not observations.results():
            return [choices.call("pay", what="help"), choices.call("look", place="help")]
        return {"helped": values(observations)}

    def librarian(observations: Any, choices: Any) -> Any:
        match len(observations.results()):
            case 0:
                return [choices.say("I look."), choices.call("look", place="shelf"), choices.call("pay", what="book")]
            case 2:
                return under(FirstSuccess(), [choices.call("far_shelf"), choices.call("reserve", what="book")])
            case 4:
                return [choices.call("helper", task="Help me."), choices.call("critic", task="critic: cover")]
            case _:
                return " ".join(map(str, values(observations)))

    given.add_policy(helper, name="helper", to=["librarian"])
    add_agent: Any = given.add_agent
    more: dict[str, Any] = {}
    if IS_EARLIER:
        add_agent(Cast(ledger, [critic], model=script, toolkit=toolkit), "critic", to=["librarian"])
    else:
        add_agent(critic, to=["librarian"])
        more["model"] = script
    given.add_policy(librarian, name="librarian")
    async with Executor(ledger, given, policy="librarian", **more) as executor:
        outcome = await executor.run("Find the book.", thread_id="books")
    return f"{outcome.status} {outcome.response or outcome.error_message}"


# ---------------------------------------------------------------- peers


async def peers(ledger: Any, witness: Witness, approval: bool) -> str:
    """A peer that asks two others side by side, then one of them again; each has tools and a memory."""
    script = model(
        acting("bob", "look", "pay"),
        acting("carl", "reserve", "look"),
        Rule(
            when="Arrange",
            turns=(
                calls(
                    ("invoke_agent", {"target": "bob", "request": "bob: train"}),
                    ("invoke_agent", {"target": "carl", "request": "carl: room"}),
                ),
                calls(("invoke_agent", {"target": "bob", "request": "bob: taxi"})),
                says("{result_1.content} | {result_2.content} | {result_3.content}"),
            ),
        ),
    )
    specs = [
        PeerSpec(name="ada", instructions="You are ada."),
        PeerSpec(name="bob", instructions="You are bob.", tools=("look", "pay")),
        PeerSpec(name="carl", instructions="You are carl.", tools=("look", "reserve")),
    ]
    more: dict[str, Any] = {"toolkit": toolkit_for(witness, approval), "patience": QUICK}
    async with Peers(ledger, specs, topology=star("ada", ["bob", "carl"]), model=script, **more) as opened:
        outcome = await opened.run("Arrange it.", thread_id="trip")
        count = len(await opened.letters("trip"))
    return f"{outcome.status} {outcome.response} {count}"


# ---------------------------------------------------------------- postchain


async def postchain(ledger: Any, witness: Witness, approval: bool) -> str:
    """A chain whose phases look, reserve and pay."""
    used: dict[Any, tuple[str, ...]] = {
        "action": ("look",),
        "intention": ("look", "pay"),
        "understanding": ("look", "reserve"),
    }
    config = ChainConfig(phases={phase: AgentConfig(tools=tools) for phase, tools in used.items()}, found=0)
    script = model(acting("order", "look", "pay"), acting("order", "look", "reserve"), acting("order", "look"))
    more: dict[str, Any] = {"toolkit": toolkit_for(witness, approval), "grace": 0.05}
    async with PostChain(ledger, model=script, config=config, **more) as chain:
        thread_id = await chain.create("order: tea", id="order")
        life = await chain.life(thread_id)
        if life.status == "paused":  # a person has answered meanwhile, or not yet
            await chain.resume(thread_id)
        elif life.status != "completed":
            started = await chain.send({"id": "start", "type": "START_THREAD", "data": {"thread_id": thread_id}})
            assert started["type"] == "THREAD_STARTED", started
        result = await chain.wait(thread_id)
    if result.error_code == ParkedError.code:
        raise ParkedError(result.error_message or "")
    outputs = {phase: (output or {}).get("response") for phase, output in result.outputs.items()}
    # A citation has the id of a message, which differs from run to run.
    return re.sub(r"[0-9a-f]{8}-[0-9a-f-]{27}", "ID", f"{result.status} {result.response} {outputs}")


# ---------------------------------------------------------------- teams


async def teams(ledger: Any, witness: Witness, approval: bool) -> str:
    """A team with a manager whose workers act side by side, and one whose script calls tools."""
    steps = [{"name": name, "worker": name, "task": f"{name}: {name}"} for name in ("bob", "carl")]
    phases = [
        {"name": "Pair", "worker": "pair", "goals": "Go."},
        {"name": "Script", "worker": "script", "goals": "Tidy up."},
    ]
    script = model(
        Rule(when="Plan in phases", turns=(Turn(output={"refined_intent": "All.", "phases": phases, "rationale": "So."}),)),
        Rule(when="Break the phase", turns=(Turn(output={"steps": steps, "parallel": True}),)),
        Rule(when="Sum up", turns=(says("the phase is done"),)),
        Rule(when="Answer the request", turns=(says("all is done"),)),
        acting("bob", "look", "pay"),
        acting("carl", "look", "reserve"),
        Rule(tools=("look",), turns=(calls(("look", {"place": "thought"})), says("thought: {result}"))),
    )
    scripted = (
        ScriptStep(name="Look", worker="dora", tool_name="look", args={"place": "yard"}),
        ScriptStep(name="Pay", worker="dora", tool_name="pay", args={"what": "yard"}),
        ScriptStep(name="Think", worker="carl", tool_name="look", execution_mode="guided"),
    )
    told: dict[str, str] = {name: f"You are {name}." for name in ("chief", "pair", "script", "bob", "carl", "dora")}
    tools = {"bob": ("look", "pay"), "carl": ("look", "reserve"), "dora": ("look", "pay")}
    async with Team(
        ledger,
        orchestrator=AgentSpec(name="chief", instructions=told["chief"]),
        workers=[AgentSpec(name=name, instructions=told[name], tools=tools[name]) for name in tools],
        managers=[
            ManagerSpec(name="pair", instructions=told["pair"], workers=("bob", "carl")),
            ManagerSpec(name="script", instructions=told["script"], workers=("carl", "dora"), script=scripted),
        ],
        model=script,
        toolkit=toolkit_for(witness, approval),
        patience=QUICK,
    ) as team:
        outcome = await team.run("Go.", thread_id="team")
        entries = await team.store.get_messages("team")
    ends = sorted(f"{each['agent_key']}: {each['type']}" for each in entries if each["type"] in {"final", "observation"})
    return f"{outcome.status} {outcome.response} {ends}"


# ---------------------------------------------------------------- workers


async def workers(ledger: Any, witness: Witness, approval: bool) -> str:
    """Workers that a policy, a user and a model give tasks to, each in a thread of its own."""
    script = model(
        Rule(
            when="Manage",
            turns=(
                calls(
                    ("assign_task", {"worker": "looker", "task": "looker: sky"}),
                    ("assign_task", {"worker": "payer", "task": "payer: bill", "then": ["writer"]}),
                ),
                says("managed: {result_1} {result_2}"),
            ),
        ),
        acting("payer", "look", "pay"),
        acting("looker", "look", "reserve"),
        Rule(when="(?P<line>.+)", turns=(says("written: {line}"),)),
    )

    async def policy(query: StructuredMessage, assigner: Any) -> str:
        both = await assigner.assign_all([("looker", "looker: clock"), ("payer", "payer: clock")])
        handed = await assigner.assign("payer", "payer: rent", route=["writer"])
        return " | ".join(each.content for each in (*both, handed))

    def opened(controller: Any) -> Workers:
        specs = [
            AgentSpec(name="looker", instructions="You are looker.", tools=("look", "reserve")),
            AgentSpec(name="payer", instructions="You are payer.", tools=("look", "pay")),
            AgentSpec(name="writer", instructions="You are writer."),
        ]
        make: Any = Workers
        more: dict[str, Any] = {"model": script, "toolkit": toolkit_for(witness, approval)}
        if IS_EARLIER:
            return make(ledger, controller, specs, name="clerk", **more)
        return make(ledger, specs, controller=controller, controller_name="clerk", **more)

    query = StructuredMessage.create_query("Pay.", "user", "payer", task_id="direct", message_id="direct-1")
    query.add_tool_call("pay", {"what": "tea"}, "u1")
    query.add_tool_call("look", {"place": "cup"}, "u2")
    async with opened(policy) as by_policy:
        first = await by_policy.run("Go.", thread_id="by-policy")
        answer = await by_policy.send(query)
    async with opened(AgentSpec(name="controller", instructions="You are the controller.")) as by_model:
        second = await by_model.run("Manage it.", thread_id="by-model")
    results = [each["call_id"] for each in answer.tool_results]
    return f"{first.response} || {second.response} || {answer.content} {results}"


PROGRAMS: dict[str, Program] = {each.__name__: each for each in (agent, actors, options, peers, postchain, teams, workers)}


class KillingLedger:
    """A ledger that kills the process after the n-th append (`after N`) or the append of a call (`at OPTION`)."""

    def __init__(self, ledger: Any, place: str = "") -> None:
        self._ledger = ledger
        self._place = place
        self.count = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ledger, name)

    async def append(self, thread_id: str, messages: Iterable[Any], **more: Any) -> Any:
        given = tuple(messages)
        records = await self._ledger.append(thread_id, given, **more)
        self.count += 1
        names = {getattr(message.payload, "option_name", "") for message in given}
        if self._place == f"after {self.count}" or self._place in {f"at {name}" for name in names}:
            os.kill(os.getpid(), signal.SIGKILL)
        return records

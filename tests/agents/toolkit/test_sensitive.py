"""Sensitive arguments: a tool is given them, and nothing that is written down, said or watched has them. S7, G23, AT-053."""

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from pydantic_ai import Agent, Tool
from pydantic_ai.exceptions import UserError
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models import Model
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel
from tests.agents.durability.test_actor import Serve, Waiter
from tests.agents.toolkit.kit import Witness, call, failure, returns, script

from antiphon.agents import LedgerDurability
from antiphon.agents._guards import SENSITIVE, Secrets
from antiphon.agents.toolkit import Toolkit, answer, pending_approvals
from antiphon.durable import ledger_run
from antiphon.errors import ParkedError
from antiphon.ledger import STANDARD_REDACTION, Ledger, open_ledger
from antiphon.ledger.memory import MemoryLedger
from antiphon.runtime import System
from antiphon.telemetry import Telemetry

pytest.importorskip("apsw")

SECRET = "canary-4929-wxyz"
NUMBER = 987_650_123
CHARGE = ToolCallPart("charge", {"amount": 5, "card": SECRET, "pin": NUMBER}, tool_call_id="c1")


def shop(witness: Witness, **settings: Any) -> Toolkit:
    """Return a toolkit whose tools blab."""
    toolkit = Toolkit(approval_wait=settings.pop("approval_wait", 0.0))

    async def charge(amount: int, card: str, pin: int = 0) -> dict[str, Any]:
        witness.done.append(("charge", (amount, card, pin)))
        logging.getLogger("shop").info("charging")
        return {"receipt": f"{amount} from {card}", "cards": [card], "pin": pin}

    async def fail(card: str) -> str:
        witness.done.append(("fail", card))
        raise ValueError(f"no such card: {card}")

    toolkit.add(charge, sensitive=("card", "pin"), to=["clerk", "helper"], **settings)
    toolkit.add(fail, sensitive=("card",), to=["clerk"])
    return toolkit


def clerk(ledger: Ledger, toolkit: Toolkit, model: Model, *, name: str = "clerk", **more: Any) -> Agent[None, str]:
    return Agent(model, name=name, capabilities=[LedgerDurability(ledger, **more), toolkit.capability(name)])


async def run(ledger: Ledger, toolkit: Toolkit, model: Model, **more: Any) -> list[tuple[str, Any]]:
    async with ledger_run("t"):
        return returns((await clerk(ledger, toolkit, model, **more).run("go")).all_messages())


async def stored(ledger: Ledger, thread: str = "t") -> bytes:
    return b"\n".join([record.body async for record in ledger.read(thread)])


def leaks(text: bytes | str) -> bool:
    found = text if isinstance(text, str) else text.decode(errors="replace")
    return SECRET in found or str(NUMBER) in found


# ---------------------------------------------------------------- nowhere


AS_TEXT = f'{{"amount": 5, "card": "{SECRET}", "pin": {NUMBER}}}'
NOTED = call("charge", "c3", amount=6, card=SECRET, pin=NUMBER, note=f"the card is {SECRET}")
BLABBING = (
    [ToolCallPart("charge", AS_TEXT, tool_call_id="c1"), call("fail", "c2", card=SECRET)],
    [NOTED, TextPart(f"I use {SECRET} again.")],
    [TextPart(f"Charged {SECRET} with {NUMBER}.")],
)


def _bytes(folder: Path) -> bytes:
    found = b"".join(path.read_bytes() for path in folder.iterdir())
    assert SENSITIVE.encode() in found  # it is the ledger, and can be read
    return found


def blabbing(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """Be a model that repeats all secrets it knows, in every place."""
    turn = sum(isinstance(message, ModelResponse) for message in messages)
    return ModelResponse(list(BLABBING[turn]))


def test_sensitive_values_are_in_no_byte_of_the_ledger_nor_in_logs_or_histories(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """S7, G23, AT-053: in the model's calls, in results and errors of tools, and in later answers of the model."""
    witness = Witness()
    caplog.set_level(logging.DEBUG)

    async def main() -> Sequence[ModelMessage]:
        async with open_ledger(f"sqlite:///{tmp_path}/ledger.db") as ledger:
            async with ledger_run("t"):
                result = await clerk(ledger, shop(witness), FunctionModel(blabbing)).run("go")
            assert not leaks(_bytes(tmp_path))  # with what stands beside the file as long as it is open
            return result.all_messages()

    messages = asyncio.run(main())

    assert sorted(witness.done) == [("charge", (5, SECRET, NUMBER)), ("fail", SECRET)]
    assert not leaks(_bytes(tmp_path))
    assert not leaks(caplog.text)
    assert not leaks(repr(messages))
    charged, failed, refused = returns(messages)
    assert charged == ("success", {"receipt": f"5 from {SENSITIVE}", "cards": [SENSITIVE], "pin": SENSITIVE})
    assert failed == ("failed", f"fail: it failed with ValueError: no such card: {SENSITIVE} (ValueError)")
    assert refused[0] == "failed"  # it has no argument `note`


def test_sensitive_values_are_in_no_span() -> None:
    """S7: also with recorded content."""
    exporter, provider, witness = InMemorySpanExporter(), TracerProvider(), Witness()
    provider.add_span_processor(SimpleSpanProcessor(exporter))

    async def main() -> None:
        ledger = MemoryLedger()
        Waiter.agents["waiter"] = clerk(ledger, shop(witness), FunctionModel(blabbing))
        async with System(ledger, observer=Telemetry(provider, record_content=True)) as system:
            system.spawn("waiter/1", Waiter)
            served = await system.ask("waiter/1", Serve(what="tea"), thread_id="t")
        assert served.words == f"Charged {SENSITIVE} with {SENSITIVE}."
        assert not leaks(await stored(ledger))

    asyncio.run(main())
    spans = " ".join(span.to_json() for span in exporter.get_finished_spans())
    assert "gen_ai.output.messages" in spans  # what was said is there
    assert not leaks(spans)
    assert len(witness.done) == 2


async def test_an_answer_that_is_streamed_is_written_down_without_it() -> None:
    witness = Witness()

    async def stream(messages: list[ModelMessage], info: AgentInfo) -> Any:
        if len(messages) == 1:
            yield {0: DeltaToolCall("charge", '{"amount": 5, "ca', tool_call_id="c1")}
            yield {0: DeltaToolCall(json_args=f'rd": "{SECRET}"}}')}
        else:
            yield "done"

    ledger = MemoryLedger()
    await run(ledger, shop(witness), FunctionModel(stream_function=stream), live=True)
    assert not leaks(await stored(ledger))

    assert witness.done == [("charge", (5, SECRET, 0))]


async def test_a_ledger_that_takes_it_out_by_its_name_does_not_take_it_from_the_tool() -> None:
    given_to: list[str] = []
    toolkit = Toolkit()

    def login(password: str) -> str:
        given_to.append(password)
        return "in"

    toolkit.add(login, sensitive=("password",), to=["clerk"])

    async with open_ledger("memory:", redaction=STANDARD_REDACTION) as ledger:
        for _ in range(2):
            assert await run(ledger, toolkit, script([call("login", password=SECRET)])) == [("success", "in")]
        assert not leaks(await stored(ledger))

    assert given_to == [SECRET]


async def test_agents_at_the_same_time_have_each_its_own() -> None:
    """Both call the same tool, under the same id of a call."""
    witness = Witness()

    ledger, toolkit = MemoryLedger(), shop(witness)
    agents = [
        clerk(ledger, toolkit, script([call("charge", amount=number, card=f"canary-{name}")]), name=name)
        for number, name in enumerate(("clerk", "helper"))
    ]
    async with ledger_run("t"):
        await asyncio.gather(*(agent.run("go") for agent in agents))

    assert sorted(witness.done) == [("charge", (0, "canary-clerk", 0)), ("charge", (1, "canary-helper", 0))]


async def test_a_tool_that_has_not_said_so_is_not_given_it() -> None:
    """It would write it down. What it is given stays JSON."""
    witness = Witness()

    ledger, toolkit = MemoryLedger(), shop(witness)

    def look(what: Any) -> str:
        witness.done.append(("look", what))
        return "seen"

    toolkit.add(look, to=["clerk"])
    peek = ToolCallPart("look", f'{{"what": [{NUMBER}, "{SECRET}", 5]}}', tool_call_id="c2")
    assert [outcome for outcome, _ in await run(ledger, toolkit, script([CHARGE], [peek]))] == ["success", "success"]
    assert not leaks(await stored(ledger))

    assert witness.done[1] == ("look", [SENSITIVE, SENSITIVE, 5])


def test_a_plain_tool_that_says_something_is_sensitive_is_refused() -> None:
    """Nobody would put the value back."""

    async def main() -> None:
        tool = Tool(lambda card: "paid", name="pay", metadata={"antiphon": {"sensitive": ["card"]}})
        agent = Agent(script([]), name="clerk", tools=[tool], capabilities=[LedgerDurability(MemoryLedger())])
        async with ledger_run("t"):
            await agent.run("go")

    with pytest.raises(
        UserError, match="'pay' has the setting 'sensitive', which only a Toolkit observes: add the tool to one"
    ):
        asyncio.run(main())


# ---------------------------------------------------------------- a process that ended


class Crashing:
    """A model that gives up in its second turn, the first time."""

    def __init__(self, first: ToolCallPart = CHARGE) -> None:
        self.first = first
        self.turns: list[int] = []
        self.is_crashing = True

    def __call__(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        self.turns.append(len(messages))
        if len(messages) == 1:
            return ModelResponse([self.first])
        if self.is_crashing:
            raise asyncio.CancelledError
        return ModelResponse([TextPart("done")])


async def test_a_finished_call_with_a_sensitive_value_is_replayed_after_a_crash() -> None:
    """G9: the value is gone, and is not needed."""
    witness, model = Witness(), Crashing()

    ledger = MemoryLedger()
    with pytest.raises(asyncio.CancelledError):
        await run(ledger, shop(witness), FunctionModel(model))
    model.is_crashing = False
    for _ in range(2):
        ((outcome, said),) = await run(ledger, shop(witness), FunctionModel(model))
        assert (outcome, said["receipt"]) == ("success", f"5 from {SENSITIVE}")

    assert witness.done == [("charge", (5, SECRET, NUMBER))]
    assert model.turns == [1, 3, 3]


@pytest.mark.parametrize(("effects", "code"), [("none", "SENSITIVE_LOST"), ("idempotent", "SENSITIVE_LOST"), ("once", None)])
async def test_an_interrupted_call_is_not_repeated_without_its_sensitive_value(effects: Any, code: str | None) -> None:
    """G7: a `once` call is parked; for other calls the model gets an error, and nothing is started."""
    begun: list[str] = []

    def toolkit() -> Toolkit:
        made = Toolkit()

        async def pay(card: str) -> str:
            begun.append(card)
            raise asyncio.CancelledError

        made.add(pay, effects=effects, sensitive=("card",), to=["clerk"])
        return made

    ledger, model = MemoryLedger(), script([call("pay", card=SECRET)])
    with pytest.raises(asyncio.CancelledError):
        await run(ledger, toolkit(), model)
    for _ in range(2):
        if code is None:
            with pytest.raises(ParkedError, match="nobody knows whether 'pay' was done"):
                await run(ledger, toolkit(), model)
        else:
            ((outcome, said),) = await run(ledger, toolkit(), model)
            assert (outcome, code in said) == ("failed", True)

    assert begun == [SECRET]


async def test_a_call_that_waited_for_a_person_when_the_process_ended_is_asked_for_anew() -> None:
    """The model is told, gives the value again, and a person is asked again: the first yes was for a call that is gone."""
    witness = Witness()
    questions: set[str] = set()
    again = [CHARGE], [ToolCallPart("charge", CHARGE.args, tool_call_id="c2")]

    ledger = MemoryLedger()
    for _ in range(2):
        with pytest.raises(ParkedError):
            await run(ledger, shop(witness, approval=True), script(*again))
        approval = (await pending_approvals(ledger))[-1]
        questions.add(approval.id)
        await answer(ledger, approval.id, principal="ada", approved=True)
    assert len(questions) == 2
    assert witness.done == []
    assert not leaks(await stored(ledger))


async def test_a_process_that_waits_has_it_when_the_answer_comes() -> None:
    witness = Witness()

    ledger = MemoryLedger()
    toolkit = shop(witness, approval=True, approval_wait=None)
    running = asyncio.create_task(run(ledger, toolkit, script([CHARGE])))
    async for tailed in ledger.tail():
        if tailed.record.message.invocation_id and "approval" in tailed.record.message.invocation_id:
            break
    (approval,) = await pending_approvals(ledger)
    assert approval.arguments == {"amount": 5, "card": SENSITIVE, "pin": SENSITIVE}
    await answer(ledger, approval.id, principal="ada", approved=True)
    await running
    assert not leaks(await stored(ledger))

    assert witness.done == [("charge", (5, SECRET, NUMBER))]


async def test_a_model_that_copies_the_mark_gets_no_value_for_it() -> None:
    """It has seen its own call without the value, and sends that."""
    witness = Witness()
    copied = call("charge", "c1", amount=7, card=SENSITIVE)

    told = await run(MemoryLedger(), shop(witness), script([CHARGE], [copied]))
    assert [outcome for outcome, _ in told] == ["success", "failed"]
    assert "give it again (SENSITIVE_LOST)" in told[1][1]

    assert [amount for _, (amount, *_) in witness.done] == [5]


def test_outside_of_a_run_the_mark_is_no_value_either() -> None:
    payload = asyncio.run(shop(Witness()).call("clerk", "charge", {"amount": 5, "card": SENSITIVE}))

    assert failure(payload)[0] == "SENSITIVE_LOST"


# ---------------------------------------------------------------- taken out, as arithmetic


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.slow
@given(
    st.text(min_size=4, max_size=12).filter(lambda text: text not in SENSITIVE), st.text(max_size=5), st.text(max_size=5), JSON
)
def test_no_text_keeps_a_value_that_was_remembered(secret: str, before: str, after: str, rest: Any) -> None:
    withheld = Secrets()
    withheld.remember([{"deep": [secret, True, None]}])

    clean = withheld.clean({"said": f"{before}{secret}{after}", "rest": rest, "is": True})

    assert secret not in clean["said"].replace(SENSITIVE, "")
    assert clean["is"] is True
    assert Secrets().clean(rest) == rest

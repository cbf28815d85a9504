"""A policy that is an agent on the real local model: what is looked at is the protocol, never its words."""

from typing import Annotated

import pytest
from pydantic import Field

from antiphon.agents.models import model
from antiphon.agents.models._local import LocalModel
from antiphon.errors import LocalModelError
from antiphon.ledger.memory import MemoryLedger
from antiphon.messages import Conversation, OptionResultPayload
from antiphon.patterns.cast import AgentSpec
from antiphon.patterns.options import Executor, ExecutorLimits, Options


@pytest.mark.slow
async def test_the_local_model_decides_and_its_calls_are_run() -> None:
    """OP-050: every call has a result in the thread, and the last text is the answer."""
    try:
        local = model("local")
    except LocalModelError as exc:
        pytest.skip(f"the local model's weights are not there: {exc}")
    assert isinstance(local, LocalModel)
    ledger, options = MemoryLedger(), Options()

    @options.option(effects="none")
    def weather(city: Annotated[str, Field(max_length=20)]) -> str:
        """The weather in a city."""
        return f"4 degrees in {city}"

    spec = AgentSpec(name="ada", instructions="Look at the weather, then say it in a few words.", max_tokens=40)
    options.add_agent(spec)
    limits = ExecutorLimits(steps=3)
    try:
        async with Executor(ledger, options, limits=limits, model=local) as executor:
            outcome = await executor.run("What is the weather in Paris?", thread_id="t")
        async with Executor(ledger, options, limits=limits, model=local) as executor:
            assert await executor.run("What is the weather in Paris?", thread_id="t") == outcome
    finally:
        local.server.stop()
    said = Conversation([record.message async for record in ledger.read("t") if record.message.lane == "talk"])
    by_model = [each for each in said if each.policy == "ada" and each.usage is not None]
    assert by_model
    assert outcome.status == "completed" or outcome.error_code == "BUDGET_EXCEEDED"
    assert not said.open_calls()
    for each in said.results():
        assert isinstance(each.payload, OptionResultPayload)
        assert each.payload.is_error == (each.policy == "runtime")

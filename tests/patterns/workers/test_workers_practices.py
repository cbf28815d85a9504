"""What the document of Atlas recommends, over whole runs: tools step by step, metadata that decides, secrets that stay in."""

import logging
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from pydantic_ai.messages import ModelMessage, ModelResponse, ToolCallPart
from pydantic_ai.models.function import AgentInfo
from tests.patterns.chains import run
from tests.patterns.workers.minds import Told, got, prompt, saying

from antiphon.agents.toolkit import Toolkit
from antiphon.dialects.atlas import MessageType, StructuredMessage
from antiphon.ledger import open_ledger
from antiphon.ledger.memory import MemoryLedger
from antiphon.messages import OptionCallPayload, OptionResultPayload
from antiphon.patterns.cast import AgentSpec
from antiphon.patterns.workers import Assigner, Workers, conversation
from antiphon.patterns.workers._conversation import structured
from antiphon.protocol.flows import find_flow
from antiphon.telemetry import Telemetry

ADA, BOB = AgentSpec(name="ada", instructions="You are ada."), AgentSpec(name="bob", instructions="You are bob.")
ECHO = saying(lambda messages, info: f"{(info.instructions or '').split('.')[0]}: {prompt(messages)}")

TOOLS = {MessageType.TOOL_REQUEST, MessageType.TOOL_RESPONSE}


# ---------------------------------------------------------------- tools, step by step


def _seeker(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse | str:
    """Go where the last result says, and answer with the last."""
    found = got(messages)
    if len(found) == 2:
        return f"It is in the {found[-1]['next']}."
    given = {"place": found[-1]["next"] if found else "hall"}
    return ModelResponse([ToolCallPart("look", given, tool_call_id=f"c{len(found) + 1}")])


def test_an_agent_uses_tools_step_by_step_each_with_what_the_step_before_gave() -> None:
    """AT-045: query, then a tool request and its results for each step, then one response that has all of them.

    Each request is in the thread before its tool starts; each result reaches the agent, whose next request depends on it.
    """
    # Mutant: `_responder.Responder._run_given` says the request after the calls, or no `create_tool_response` -> red.
    # Mutant: `_responder._add_calls` leaves out the results, or gives them the id of another call -> red.
    # Mutant: `_responder._prompt` leaves out what the tools gave -> red.
    # Mutant: `protocol/_flows.py`: `TOOL_EXECUTION` allows a response after a request that has no result -> red.
    way = {"attic": "hall", "hall": "cellar", "cellar": "barrel"}

    async def main() -> None:
        ledger, toolkit, told = MemoryLedger(), Toolkit(), Told()
        open_at_start: list[list[str]] = []

        @toolkit.tool(effects="none", to=["ada"])
        async def look(place: str) -> dict[str, str]:
            """Look somewhere."""
            open_at_start.append([call.invocation_id or "" for call in (await talk(ledger)).open_calls()])
            return {"next": way[place]}

        async with Workers(ledger, [ADA], model=saying(_seeker, told), toolkit=toolkit) as workers:
            query = StructuredMessage.create_query("Where is it?", "user", "ada", task_id="t")
            query.add_tool_call("look", {"place": "attic"}, "c0")
            answer = await workers.send(query)

        said = await talk(ledger)
        assert [_step(each.payload) for each in said] == ["said", "c0?", "c0!", "c1?", "c1!", "c2?", "c2!", "said"]
        assert open_at_start == [["c0"], ["c1"], ["c2"]]
        assert [unit.message_type for unit in structured(said)] == [
            MessageType.QUERY,
            *[MessageType.TOOL_REQUEST, MessageType.TOOL_RESPONSE] * 3,
            MessageType.RESPONSE,
        ]
        assert 'What the tools gave:\n- look: {"next": "hall"}' in told.prompts[0]
        assert (answer.message_type, answer.content) == (MessageType.RESPONSE, "It is in the barrel.")
        assert [(call["id"], call["arguments"]["place"]) for call in answer.tool_calls] == [
            ("c0", "attic"),
            ("c1", "hall"),
            ("c2", "cellar"),
        ]
        assert [(each["call_id"], each["status"], each["result"]) for each in answer.tool_results] == [
            (f"c{number}", "success", {"next": place}) for number, place in enumerate(way.values())
        ]
        flow, messages = find_flow("tool-execution"), list(said)
        assert flow.check(messages).state == "complete"
        assert flow.check(messages[:-1]).state == "open"
        assert flow.check([*messages[:2], messages[-1]]).state == "open"  # the request has no result

    async def talk(ledger: MemoryLedger) -> Any:
        return await conversation(ledger, "t", tools=True)

    run(main())


def _step(payload: Any) -> str:
    if isinstance(payload, OptionCallPayload | OptionResultPayload):
        return f"{payload.invocation_id}{'?' if isinstance(payload, OptionCallPayload) else '!'}"
    return "said"


# ---------------------------------------------------------------- metadata


async def test_metadata_is_there_for_processing_from_the_first_worker_to_the_last() -> None:
    """AT-051: metadata of a sender reaches the model, is in the thread, and is passed on with the task.

    What says how a message travels (`route`, `reply_to`, `in_reply_to`, `type`) is no matter for a model.
    """
    # Mutant: `_responder._about` tells nothing, or `_ENVELOPE` is empty -> red.
    # Mutant: `_actors._matter` gives the next one the task alone -> red.
    # Mutant: `_talk.rows_of` leaves the metadata out of the row -> red.
    data = {"language": "is", "customer": {"id": 7, "tier": "gold"}}

    told = Told()
    async with Workers(workers=[ADA, BOB], model=saying(lambda *_: "done", told)) as workers:
        task = StructuredMessage.create_task("Go.", "me", "ada", {**data, "route": ["bob"], "reply_to": "press"}, task_id="t")
        answer = await workers.send(task)
        first, handed_on, _ = await workers.messages("t")
    lines = '- language: is\n- customer: {"id": 7, "tier": "gold"}'
    assert told.prompts[0] == f"Go.\n\nGiven with it:\n{lines}"
    assert told.prompts[1] == f"done\n\nGiven with it:\n- task: Go.\n{lines}"
    assert first.metadata == {**data, "type": "task", "route": ["bob"], "reply_to": "press"}
    assert {name: handed_on.metadata[name] for name in data} == data
    assert (answer.source_agent, answer.target_agent) == ("bob", "press")


async def test_a_controller_routes_by_metadata() -> None:
    """AT-051: its policy reads the metadata of the query, and chooses the worker."""
    # Mutant: `_actors.ControllerActor.ask` gives the policy a message without its metadata -> red.

    async def by_department(query: StructuredMessage, assigner: Assigner) -> str:
        worker = {"billing": "ada", "press": "bob"}[query.metadata["department"]["name"]]
        return (await assigner.assign(worker, query.content)).content

    async with Workers(None, [ADA, BOB], controller=by_department, model=ECHO) as workers:
        for department, worker in (("billing", "ada"), ("press", "bob")):
            data = {"department": {"name": department}}
            query = StructuredMessage.create_query("Hello.", "user", "controller", metadata=data)
            assert (await workers.send(query)).content == f"You are {worker}: Hello."


# ---------------------------------------------------------------- secrets


SECRETS = ("canary-pin-1", "canary-key-2", "canary-word-3", "canary-task-4", "canary-back-5", "canary-raised-6")


def _shop(seen: list[str]) -> Toolkit:
    toolkit = Toolkit()

    def log_in(name: str, pin: str) -> dict[str, str]:
        """Log in."""
        seen.append(pin)
        return {"greeting": f"{name}, your pin is {pin}", "password": "canary-back-5"}

    def fail(api_key: str) -> str:
        """Fail, and tell too much."""
        seen.append(api_key)
        raise ValueError(f"no such key: {api_key}, api_key=canary-raised-6")

    toolkit.add(log_in, sensitive=("pin",), to=["ada"])
    toolkit.add(fail, sensitive=("api_key",), to=["ada"])
    return toolkit


async def _policy(query: StructuredMessage, assigner: Assigner) -> str:
    done = await assigner.assign("ada", "Log in.", task_data={"token": "canary-task-4"}, route=["bob"])
    return f"password: canary-word-3 {done.content}"


def _talkative(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse | str:
    if "ada" not in (info.instructions or "") or len(got(messages)) == 2:
        return f"token=canary-task-4 {got(messages)}"
    calls = ("log_in", {"name": "a", "pin": "canary-pin-1"}), ("fail", {"api_key": "canary-key-2"})
    return ModelResponse([ToolCallPart(name, given, tool_call_id=f"c{name}") for name, given in calls])


@pytest.mark.slow
def test_secrets_reach_the_tools_and_are_stored_nowhere(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """AT-053, BP7: no byte of the store, no log line, no span with content, nothing that listeners are given.

    Secrets are in metadata, in words, in task data, in arguments, in what a tool returns and in what it raises.
    """
    # Mutant: `_responder.shown` returns the arguments as they are -> red.
    # Mutant: `_sensitive.SensitiveArguments.take_out` returns the message as it is -> red.
    # Mutant: `ledger/_secrets.py`: the usual shapes do not know `token` -> red.
    # Mutant: `telemetry/_content.py`: `redacted` returns the text as it is -> red.
    caplog.set_level(logging.DEBUG)
    exporter, provider, seen, heard = InMemorySpanExporter(), TracerProvider(), list[str](), list[str]()
    provider.add_span_processor(SimpleSpanProcessor(exporter))

    async def main() -> str:
        async with open_ledger(f"sqlite:///{tmp_path}/ledger.db") as ledger:
            given: Any = {"toolkit": _shop(seen), "observer": Telemetry(provider, record_content=True)}
            async with Workers(ledger, [ADA, BOB], controller=_policy, model=saying(_talkative), **given) as workers:
                workers.on_message(lambda thread, message: heard.append(message.to_json()))
                words = "Log me in, password=canary-word-3"
                data = {"api_key": "canary-key-2"}
                query = StructuredMessage.create_query(words, "user", "controller", metadata=data, task_id="t")
                await workers.send(query)
                direct = StructuredMessage.create_query("Log in.", "user", "ada", task_id="t2")
                direct.add_tool_call("log_in", {"name": "b", "pin": "canary-pin-1"}, "own")
                answer = await workers.send(direct)
                said = [*await workers.messages("t"), *await workers.messages("t2"), answer]
                return " ".join(message.to_json() for message in said)

    said = run(main())

    stored = b"".join(path.read_bytes() for path in tmp_path.iterdir()).decode(errors="replace")
    spans = " ".join(span.to_json() for span in exporter.get_finished_spans())
    assert sorted(seen) == ["canary-key-2"] * 2 + ["canary-pin-1"] * 3
    assert "Log me in" in stored
    assert "own" in said
    assert len(heard) > 5
    assert {StructuredMessage.from_json(each).message_type for each in heard} >= TOOLS
    assert "log_in" in spans
    ways = {"store": stored, "log": caplog.text, "spans": spans, "heard": " ".join(heard), "said": said}
    assert {(way, secret) for way, text in ways.items() for secret in SECRETS if secret in text} == set()

"""Typed outputs through the model classes of two providers and their SDKs, against a server that answers as they do."""

import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from anthropic import AsyncAnthropic
from openai import AsyncOpenAI
from pydantic_ai.models import Model
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider
from tests.patterns.chains import QUESTION, chain_on, known

from antiphon.ledger.memory import MemoryLedger
from antiphon.patterns.postchain import ChainConfig
from antiphon.protocol import PHASES, AgentConfig

CONFIG = ChainConfig(backoff=0, phases={"action": AgentConfig(tools=())})
STEEPED = "Green tea is steeped at 80 degrees for two minutes."
GOOD: dict[str, dict[str, Any]] = {
    "action": {"response": "Perhaps 80 degrees.", "confidence": 0.4},
    "experience": {"synthesis": "One source says it [1].", "used": ["1"], "missing": None},
    "intention": {
        "summary": "A temperature.",
        "goals": ["Know the temperature"],
        "scores": [{"source": "1", "score": 0.95, "reason": "it names it"}],
    },
    "observation": {
        "notes": "Tea has a temperature.",
        "entities": ["green tea"],
        "links": [{"source": "1", "relationship": "answers", "strength": 0.9}],
    },
    "understanding": {"summary": "All is known.", "keep": ["1"], "release": [], "reasons": []},
    "yield": {
        "answer": "At 80 degrees [1].",
        "confidence": 0.97,
        "quotes": [{"source": "1", "text": STEEPED}],
        "next_phase": None,
        "search_for": None,
    },
}


@dataclass
class Provider:
    """What a server answers, by phase, one after the other, the last one from then on; and what it was asked."""

    outputs: dict[str, list[dict[str, Any]]]
    asked: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    url: str = ""

    def answer(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        phase = re.search(r"You are the (\w+) phase", json.dumps([body.get("system"), body["messages"]]))
        assert phase is not None
        before = sum(name == phase[1] for name, _ in self.asked)
        self.asked.append((phase[1], body))
        output = self.outputs[phase[1]][min(before, len(self.outputs[phase[1]]) - 1)]
        return _openai(body, output) if path.endswith("/chat/completions") else _anthropic(body, output)

    def requests(self, phase: str) -> list[dict[str, Any]]:
        return [body for name, body in self.asked if name == phase]


def _openai(body: dict[str, Any], output: dict[str, Any]) -> dict[str, Any]:
    (tool,) = body["tools"]
    assert tool["function"]["parameters"]["type"] == "object"
    call = {"id": f"call_{len(body['messages'])}", "type": "function"}
    call["function"] = {"name": tool["function"]["name"], "arguments": json.dumps(output)}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    usage = {"prompt_tokens": 7, "completion_tokens": 5, "total_tokens": 12}
    return {
        "id": "c1",
        "object": "chat.completion",
        "created": 1,
        "model": "gpt-4o",
        "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}],
        "usage": usage,
    }


def _anthropic(body: dict[str, Any], output: dict[str, Any]) -> dict[str, Any]:
    (tool,) = body["tools"]
    assert tool["input_schema"]["type"] == "object"
    used = {"type": "tool_use", "id": f"toolu_{len(body['messages'])}", "name": tool["name"], "input": output}
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "claude-test",
        "content": [used],
        "stop_reason": "tool_use",
        "stop_sequence": None,
        "usage": {"input_tokens": 7, "output_tokens": 5},
    }


@contextmanager
def serving(provider: Provider) -> Iterator[Provider]:
    """Serve on a free port of this machine until the block is left."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            data = json.dumps(provider.answer(self.path.partition("?")[0], body)).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing: the test has the record."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        provider.url = f"http://127.0.0.1:{server.server_port}"
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        try:
            yield provider
        finally:
            server.shutdown()


def openai(url: str) -> Model:
    return OpenAIChatModel(
        "gpt-4o", provider=OpenAIProvider(openai_client=AsyncOpenAI(base_url=f"{url}/v1", api_key="sk-fake"))
    )


def anthropic(url: str) -> Model:
    return AnthropicModel(
        "claude-test", provider=AnthropicProvider(anthropic_client=AsyncAnthropic(base_url=url, api_key="sk-fake"))
    )


PROVIDERS = pytest.mark.parametrize("make", [openai, anthropic], ids=["openai", "anthropic"])


async def ask(make: Callable[[str], Model], **outputs: list[dict[str, Any]]) -> tuple[Any, Provider]:
    wanted = {phase: outputs.get(phase, [GOOD[phase]]) for phase in PHASES}
    with serving(Provider(wanted)) as provider:
        ledger, model = await known(MemoryLedger()), make(provider.url)
        try:
            async with chain_on(ledger, model=model, config=CONFIG) as chain:
                return await chain.run(QUESTION), provider
        finally:
            await model.client.close()  # type: ignore[attr-defined]


@PROVIDERS
@pytest.mark.slow
async def test_the_judgements_of_six_agents_count(make: Callable[[str], Model]) -> None:
    result, provider = await ask(make)

    assert result.status == "completed", result.error_message
    assert {phase: result.outputs[phase]["by"] for phase in PHASES} == dict.fromkeys(PHASES, "agent")
    assert list(result.outputs["intention"]["scores"].values()) == [0.95]
    assert result.response.startswith("At 80 degrees [1].")
    assert [each["quote"] for each in result.citations] == [STEEPED]
    assert [name for name, _ in provider.asked] == list(PHASES)


@PROVIDERS
@pytest.mark.slow
@pytest.mark.parametrize(
    ("phase", "change", "said"),
    [
        ("intention", {"scores": [{"source": "9", "score": 0.5, "reason": ""}]}, "there is no source '9'"),
        ("intention", {"scores": [{"source": "1", "score": 7, "reason": ""}]}, "less than or equal to 1"),
        ("yield", {"quotes": [{"source": "1", "text": "Green tea is boiled."}]}, "does not say 'Green tea is boiled.'"),
        ("understanding", {"release": ["user-1"]}, "never released"),
    ],
    ids=["a source that is not there", "a score out of range", "an invented quote", "the user's words"],
)
async def test_the_model_gets_the_fault_of_its_output_and_corrects_it(
    make: Callable[[str], Model], phase: str, change: dict[str, Any], said: str
) -> None:
    """The validators of the form, and those that raise `ModelRetry`."""
    result, provider = await ask(make, **{phase: [GOOD[phase] | change, GOOD[phase]]})

    first, second = provider.requests(phase)
    assert said not in json.dumps(first["messages"])
    assert said in json.dumps(second["messages"])
    assert result.outputs[phase]["by"] == "agent"
    assert "dropped" not in result.outputs[phase]
    assert [each["quote"] for each in result.citations] == [STEEPED]


@PROVIDERS
@pytest.mark.slow
async def test_an_output_that_never_validates_ends_after_a_bounded_number_of_requests(make: Callable[[str], Model]) -> None:
    """What is right in it counts; the wrong entry is dropped, and reported."""
    wrong = GOOD["yield"] | {"quotes": [{"source": "1", "text": "Green tea is boiled."}]}
    result, provider = await ask(make, **{"yield": [wrong]})

    assert result.status == "completed", result.error_message
    assert len(provider.requests("yield")) <= 3
    assert "Green tea is boiled." in result.outputs["yield"]["dropped"][0]
    assert [each["quote"] for each in result.citations] == [STEEPED]

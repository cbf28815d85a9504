"""Pydantic AI's conversations in the ledger: the same answers as its own store in memory, and nothing said twice."""

from typing import Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.conversation import Conversation
from pydantic_ai.conversation_store import ConversationConflict, ConversationStore, InMemoryConversationStore
from pydantic_ai.exceptions import UserError
from pydantic_ai.messages import (
    BinaryImage,
    ImageUrl,
    ModelMessage,
    ModelRequest,
    ModelResponse,
    SystemPromptPart,
    TextPart,
    ThinkingPart,
    ToolReturnPart,
    UserPromptPart,
)
from tests.agents.durability.agents import Desk, call, clerk, script

from antiphon.agents import LedgerConversationStore
from antiphon.durable import ledger_run
from antiphon.ledger.memory import MemoryLedger


def turn(number: int, **more: Any) -> list[ModelMessage]:
    return [
        ModelRequest(parts=[SystemPromptPart("be kind"), UserPromptPart("the same words")], run_id=f"r{number}", **more),
        ModelResponse(parts=[ThinkingPart("hm", signature="s"), TextPart("one"), call("look", f"c{number}", what="x")]),
        ModelRequest(parts=[ToolReturnPart("look", {"a": [1, None]}, tool_call_id=f"c{number}")], run_id=f"r{number}", **more),
        ModelResponse(parts=[TextPart(f"answer {number}")], model_name="gpt-4o", provider_response_id=f"p{number}"),
    ]


async def act(store: ConversationStore) -> list[Any]:
    """Use a store in every way, and return the visible results."""
    seen: list[Any] = []
    fresh = Conversation(conversation_id="c", messages=turn(1, instructions="be brief"))
    seen.append(len(await store.save(fresh, scope="ada")))
    loaded = await store.load("c", scope="ada")
    assert loaded is not None
    seen.append(loaded.messages == fresh.messages)
    loaded.messages.extend(turn(2, instructions="be brief"))
    seen.append(len(await store.save(loaded)))
    seen.append(await store.load("c", scope="bob"))
    with pytest.raises(ConversationConflict):
        await store.save(fresh)  # of another revision? no: it was advanced; but someone has saved since
    again = await store.load("c", limit=3)
    assert again is not None
    seen.append([type(message).__name__ for message in again.messages])
    branched = await store.branch("c", at=2, expected_revision=loaded.revision)
    branched.messages.append(ModelRequest(parts=[UserPromptPart(["look", ImageUrl("https://a.example/b.png")])]))
    seen.append(len(await store.save(branched)))
    fork = await store.fork("c", at=1, new_conversation_id="d")
    fork.messages.append(ModelResponse(parts=[TextPart("in the fork")]))
    await store.save(fork)
    for name in ("c", "d"):
        found = await store.load(name)
        assert found is not None
        seen.append([repr(message.parts[-1])[:40] for message in found.messages])
    seen.append([record.conversation_id for record in await store.list_conversations(scope="ada", limit=5)])
    await store.delete("c")
    seen.append(await store.load("c"))
    seen.append([record.conversation_id for record in await store.list_conversations()])
    kept = await store.load("d")
    assert kept is not None
    seen.append(len(kept.messages))
    await store.save(Conversation(conversation_id="c", messages=turn(3)))
    with pytest.raises(ConversationConflict):
        await store.save(Conversation(conversation_id="c", messages=turn(3)))
    with pytest.raises(UserError):
        await store.branch("e", at=1, expected_revision=None)
    return seen


async def test_it_does_what_the_store_in_memory_does() -> None:
    ours = await act(LedgerConversationStore(MemoryLedger()))
    assert ours == await act(InMemoryConversationStore())


async def test_every_message_comes_back_as_it_was() -> None:
    messages = [
        *turn(1, instructions="first"),
        *turn(2, instructions="second"),
        *turn(3),
        ModelRequest(parts=[UserPromptPart([BinaryImage(b"\x89PNG", media_type="image/png"), "what is it?"])]),
        ModelResponse(parts=[]),
    ]
    store = LedgerConversationStore(MemoryLedger())
    await store.save(Conversation(conversation_id="c", messages=messages))
    loaded = await store.load("c")
    assert loaded is not None
    assert loaded.messages == messages
    assert len({entry.id for entry in await store.load_entries("c") or []}) == len(messages)


@pytest.mark.slow
async def test_messages_of_a_durable_run_are_not_stored_again() -> None:
    ledger, desk = MemoryLedger(), Desk()
    store = LedgerConversationStore(ledger)
    agent: Agent[None, Any] = clerk(
        ledger, desk, script(desk, [call("look", "c1", what="x")], ["there"], ["yes"]), instructions="be kind"
    )
    for number, prompt in enumerate(("look", "really?")):
        conversation = await store.load("chat") or Conversation(conversation_id="chat")
        async with ledger_run("chat", id=f"turn-{number}"):
            result = await agent.run(prompt, conversation=conversation)
        await store.save(result)
    loaded = await store.load("chat")
    assert loaded is not None
    assert loaded.messages == result.all_messages()
    assert len(loaded.messages) == 6
    talk = [record.message async for record in ledger.read("chat") if record.message.lane == "talk"]
    assert [message.kind for message in talk] == [
        "parts",  # the instructions
        "parts",
        "option_call",
        "option_result",
        "parts",
        "parts",
        "parts",
    ]
    control = [record.message.model_dump_json() async for record in ledger.read("chat") if record.message.lane == "control"]
    assert not [row for row in control if "really?" in row]

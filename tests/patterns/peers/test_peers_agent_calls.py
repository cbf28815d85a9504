"""An `agent_call` that a program has written: its task is in all that follows. MA-021, MA-022."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from pydantic_ai.messages import ModelResponse
from tests.patterns.peers.plays import QUICK, Play, asks, line, says, spec

from antiphon import decode, encode
from antiphon.dialects.marsys import Message
from antiphon.ledger.memory import MemoryLedger
from antiphon.patterns.peers import Peers, star
from antiphon.patterns.peers._letters import text_of

TEAM = [spec("ada"), spec("bob", "carl"), spec("carl")]
STAR = star("ada", ["bob", "carl"])


def echo(asked: str, given: Sequence[Any]) -> ModelResponse:
    return says(f"heard {asked}")


def call(name: str = "bob", content: Any = "Find X", caller: str | None = "ada", **more: Any) -> Message:
    metadata = {"task_id": "task_1"} | ({} if caller is None else {"caller": caller})
    return Message("agent_call", content, name=name, metadata=metadata, **more)


async def test_calls_of_one_task_are_distinguished() -> None:
    """MA-062: two calls of one agent at once, answered in reverse order: each answer belongs to its call, also on replay."""
    # Mutant: `Exchange._metadata` in _letters.py says no `interaction_id` -> this test is red.
    second_is_done = asyncio.Event()

    class Slowly(Play):
        async def _play(self, messages: Any, info: Any) -> ModelResponse:
            response = await super()._play(messages, info)
            if "Find 1" in self.prompts["bob"][-1]:
                await second_is_done.wait()
            return response

    async def second() -> Message:
        answer = await peers.invoke(call(content="Find 2"), thread_id="t")
        second_is_done.set()
        return answer

    async with Peers(None, TEAM, topology=STAR, model=Slowly(bob=echo)) as peers:
        answers = await asyncio.gather(peers.invoke(call(content="Find 1"), thread_id="t"), second())
        letters = await peers.letters("t")
    assert [(each.content, each.task_id) for each in answers] == [
        (f"heard [Request from ada]: Find {number}", "task_1") for number in (1, 2)
    ]
    read = decode([each.to_dict() for each in letters], "marsys")
    assert (read.open_calls(), read.orphans()) == ((), ())
    pairs = [(text_of(read[one]), text_of(read[two])) for one, two in read.pairs()]
    assert sorted(pairs) == [
        (f'bob({{"request": "Find {number}"}})', f"heard [Request from ada]: Find {number}") for number in (1, 2)
    ]
    assert encode(read, "marsys").value == [each.to_dict() for each in letters]


def test_an_answer_without_an_interaction_is_of_the_first_call_of_its_task() -> None:
    """MA-021, MA-022: a call may name an interaction that its answer does not."""
    units = [
        {
            "role": "agent_call",
            "content": "X?",
            "name": "b",
            "metadata": {"caller": "a", "task_id": "t", "interaction_id": "i"},
        },
        {"role": "agent_response", "content": "X", "name": "b", "metadata": {"task_id": "t"}},
        {"role": "error", "content": "late", "metadata": {"task_id": "t", "interaction_id": "i", "error_type": "E"}},
    ]
    read = decode(units, "marsys")
    assert [each.invocation_id for each in read] == ["i", "i", "i"]
    assert encode(read, "marsys").value == units


async def test_the_same_message_is_asked_once_and_another_of_the_same_words_again() -> None:
    """G6, MA-047: a call is known by its message_id, in this process and in the next."""
    ledger, first = MemoryLedger(), call(message_id="m1")
    answers: list[Message] = []
    for _ in range(2):
        play = Play(bob=echo)
        async with Peers(ledger, TEAM, topology=STAR, model=play) as peers:
            answers += [await peers.invoke(first, thread_id="t") for _ in range(2)]
    assert (len(set(answers)), play.asked) == (1, [])
    async with Peers(ledger, TEAM, topology=STAR, model=Play(bob=echo)) as peers:
        await peers.invoke(call(), thread_id="t")
        letters = await peers.letters("t")
    assert [each.role for each in letters] == ["agent_call", "agent_response"] * 2
    assert letters[0].message_id == "m1"


async def test_a_call_is_remembered_and_passed_on_under_its_own_id() -> None:
    """MA-047, MA-060, MA-062: by id, by words, and as context for the next."""
    play = Play(bob=echo, carl=echo)
    async with Peers(None, TEAM, topology=STAR, model=play) as peers:
        await peers.invoke(call(message_id="m1"), thread_id="t")
        memory = await peers.memory("ada", "t")
        found = memory.by_id("m1")
        assert found is not None
        assert found in await memory.search("Find X")
        await peers.invoke(call("carl", "Well?", message_id="m2"), thread_id="t", context_message_ids=["m1"])
        assert (await peers.memory("carl", "t")).by_id("m1") == found
    assert "[Message m1 from ada]" in play.prompts["carl"][0]


async def test_an_error_is_of_the_task_too() -> None:
    """MA-014, MA-045, MA-050: refused, or failed by the other: the error names the task of the call."""

    def fails(asked: str, given: Sequence[Any]) -> ModelResponse:
        raise RuntimeError("gone")

    more: Any = {"topology": STAR, "patience": QUICK}
    async with Peers(None, TEAM, model=Play(bob=fails), **more) as peers:
        failed = await peers.invoke(call(), thread_id="t")
        refused = await peers.invoke(call("eve"), thread_id="t")
    assert (failed.role, failed.error_type, failed.task_id) == ("error", "AGENT_ERROR", "task_1")
    assert (refused.role, refused.error_type, refused.task_id) == ("error", "PEER_NOT_FOUND", "task_1")


async def test_a_task_that_a_model_begins_has_an_id_of_its_own() -> None:
    """MA-021: without a given task each call is one, as in threads that were written before."""
    play = Play(ada=line(asks(("bob", "one"), ("carl", "two"))), bob=echo, carl=echo)
    async with Peers(None, TEAM, topology=STAR, model=play) as peers:
        await peers.run("Go", thread_id="t")
        letters = await peers.letters("t")
    assert len({each.task_id for each in letters}) == 2
    assert all("interaction_id" not in (each.metadata or {}) for each in letters)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("given", "more", "words"),
    [
        ([Message("user", "Find X", name="bob")], {"caller": "ada"}, "expected an agent_call"),
        ([Message("agent_call", "Find X")], {"caller": "ada"}, "expected an agent_call"),
        ([call(caller=None)], {}, "says who asks"),
        ([call()], {"caller": "carl"}, "give neither a second time"),
        ([call(), "Find Y"], {}, "give neither a second time"),
        (
            [call(content=[{"type": "image_url", "image_url": {"url": "https://x.org/a.png"}}])],
            {},
            "with a name and a content",
        ),
        (
            [call(content=[{"type": "text", "text": "?"}, {"type": "image_url", "image_url": {"url": "https://x.org/a"}}])],
            {},
            "asked in words",
        ),
        (["bob"], {"caller": "ada"}, "the request or the caller is missing"),
        (["bob", "Find X"], {}, "the request or the caller is missing"),
    ],
)
async def test_an_invalid_call_is_refused(given: list[Any], more: dict[str, Any], words: str) -> None:
    async with Peers(None, TEAM, topology=STAR, model=Play()) as peers:
        with pytest.raises(ValueError, match=words):
            await peers.invoke(*given, **more)


async def test_a_caller_may_be_named_beside_the_message() -> None:
    async with Peers(None, TEAM, topology=STAR, model=Play(bob=echo)) as peers:
        words = call(caller=None, content=[{"type": "text", "text": "Find X"}])
        answer = await peers.agent("ada").invoke_agent(words, thread_id="t")
    assert (answer.content, answer.task_id) == ("heard [Request from ada]: Find X", "task_1")

"""What a peer remembers: in order, by id, the last, by role, by words, in windows and in every dialect. MA-060."""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from pydantic_ai.messages import ModelResponse
from tests.patterns.chains import run
from tests.patterns.peers.plays import QUICK, Play, asks, calls, line, says, spec, talk_in

from antiphon import check, decode
from antiphon.dialects.marsys import VALID_ROLES
from antiphon.ledger.memory import MemoryLedger
from antiphon.messages import Conversation, Message
from antiphon.messages._log import estimate_tokens
from antiphon.patterns.peers import PeerLimits, PeerMemory, Peers, star

STAR = star("ada", ["bob", "carl"])


def look(place: str) -> str:
    """Look somewhere."""
    return f"nothing {place}"


def echo(asked: str, given: Sequence[Any]) -> ModelResponse:
    return says(f"heard {asked}")


def team() -> list[Any]:
    return [spec("ada", tools=("look",)), spec("bob"), spec("carl")]


def playing() -> Play:
    return Play(ada=line(calls(("look", {"place": "under the bed"})), asks(("bob", "Find the cat"))), bob=echo, carl=echo)


async def searched(ledger: MemoryLedger, *questions: str) -> Peers:
    async with Peers(ledger, team(), topology=STAR, model=playing(), tools=[look]) as peers:
        for question in questions or ("Where is the cat?",):
            await peers.run(question, thread_id="t")
    return peers


async def test_a_peer_remembers_its_messages_calls_and_results_in_order() -> None:
    """MA-060: each thing once and in order; a request to another peer is a letter, in the place of its tool call."""
    peers = await searched(MemoryLedger())
    ada, bob, carl = [await peers.memory(name, "t") for name in ("ada", "bob", "carl")]
    assert [(each.role, each.content) for each in ada.messages()] == [
        ("system", "You are ada.\n\nYou can ask other agents with invoke_agent: bob, carl."),
        ("user", "Where is the cat?"),
        ("assistant", ""),
        ("tool", "nothing under the bed"),
        ("agent_call", "Find the cat"),
        ("agent_response", "heard [Request from ada]: Find the cat"),
        ("assistant", "agent_response:heard [Request from ada]: Find the cat"),
    ]
    assert [(each.role, each.content) for each in bob.messages()] == [
        ("system", "You are bob."),
        ("user", "[Request from ada]: Find the cat"),
        ("assistant", "heard [Request from ada]: Find the cat"),
    ]
    assert len(carl) == 0


# Mutant: PeerMemory.by_id, last or by_role (_memory.py) returns other messages, or in another order -> this test is red.
@pytest.mark.slow
async def test_messages_are_found_by_id_by_role_and_as_the_last_ones() -> None:
    """MA-060: by id, last n, by role: the very messages, in their order."""
    peers = await searched(MemoryLedger(), "One?", "Two?")
    memory = await peers.agent("ada").memory("t")
    whole = tuple(memory)
    assert [memory.by_id(each.id) for each in memory] == list(memory)
    assert memory.by_id("nothing") is None
    assert [memory.last(count) for count in range(len(whole) + 2)] == [(), *(whole[-n:] for n in range(1, len(whole) + 2))]
    roles = [each.role for each in memory.messages()]
    assert len(roles) == len(whole)
    for role in ("system", "user", "assistant", "tool", "agent_call", "agent_response", "error"):
        expected = [each for each, of in zip(whole, roles, strict=True) if of == role]
        assert list(memory.by_role(role)) == expected
    assert [len(memory.by_role(role)) for role in ("user", "tool", "agent_call", "error")] == [2, 2, 2, 0]


# Mutant: PeerMemory.search (_memory.py) finds nothing, everything, what is not remembered, or more than `limit`
# -> this test is red.
@pytest.mark.slow
async def test_a_memory_is_searched_by_words() -> None:
    """MA-060: all words must be there, in any author's message; other memories and other threads are not searched."""
    ledger = MemoryLedger()
    async with Peers(ledger, team(), topology=STAR, model=playing(), tools=[look]) as peers:
        await peers.run("Where is the cat?", thread_id="other")
        await peers.run("Where is the cat?", thread_id="t")
        memory = await peers.memory("ada", "t")
        bob = await peers.memory("bob", "t")

    async def roles_of(words: str, **more: Any) -> list[str]:
        found = await memory.search(words, **more)
        assert all(memory.by_id(each.id) == each for each in found)
        return sorted(each.role for each in memory.messages() if each.message_id in {one.id for one in found})

    assert await roles_of("cat") == ["agent_call", "agent_response", "assistant", "user"]
    assert await roles_of("cat Where") == ["user"]
    assert await roles_of("bed nothing") == ["tool"]
    assert await roles_of("cat dog") == []
    assert await roles_of("invoke_agent target") == []  # the thread has it, the memory has a letter instead
    assert len(await memory.search("cat", limit=1)) == 1
    assert [each.role for each in bob.messages()] == ["system", "user", "assistant"]
    assert await bob.search("nothing") == ()


@pytest.mark.slow
async def test_a_memory_only_grows_at_its_end_and_cannot_be_changed() -> None:
    """MA-046, MA-060: append-only: the memory of an earlier state of the thread is a prefix of the later one."""
    ledger = MemoryLedger()
    peers = await searched(ledger)
    answer = (await peers.memory("ada", "t")).by_role("agent_response")[0]
    async with Peers(ledger, team(), topology=STAR, model=playing(), tools=[look]) as peers:
        await peers.invoke("carl", "Look at this", caller="ada", thread_id="t", context_message_ids=[answer.id])
        for name in ("ada", "bob", "carl"):
            whole = list(await peers.memory(name, "t"))
            for seq in range((await ledger.head("t")).seq + 2):
                some = list(await PeerMemory.read(ledger, "t", name, before=seq))
                assert some == whole[: len(some)]
            assert len(some) == len(whole)
    memory = await peers.memory("ada", "t")
    before = (tuple(memory), memory.to_llm_format())
    with pytest.raises(AttributeError):
        memory.conversation = Conversation()  # type: ignore[misc]
    with pytest.raises(ValidationError, match="frozen"):
        memory.last(1)[0].policy = "somebody else"  # type: ignore[misc]
    memory.to_llm_format().clear()
    memory.messages().pop()
    assert (tuple(memory), memory.to_llm_format()) == before


@pytest.mark.slow
async def test_messages_that_are_passed_on_keep_their_ids() -> None:
    """MA-047, MA-062: carl remembers bob's message to ada itself, and carl's model gets its text."""
    ledger = MemoryLedger()
    peers = await searched(ledger)
    passed = (await peers.memory("ada", "t")).by_role("agent_response")[0]
    play = playing()
    async with Peers(ledger, team(), topology=STAR, model=play, tools=[look]) as peers:
        ids = [passed.id]
        await peers.invoke("carl", "What do you think?", caller="ada", thread_id="t", context_message_ids=ids)
        memory = await peers.memory("carl", "t")
    assert memory.by_id(passed.id) == passed
    assert next(iter(memory)) == passed
    rows = [each.id for each in await talk_in(ledger, "t")]
    assert rows.count(passed.id) == 1
    told = f"[Message {passed.id} from bob]: heard [Request from ada]: Find the cat\n[Request from ada]: What do you think?"
    assert play.prompts["carl"] == [told]


async def test_a_model_passes_on_what_it_was_answered() -> None:
    """MA-062: the answer of one agent names its message, which the model hands to the next."""

    def ada(asked: str, given: Sequence[Any]) -> ModelResponse:
        if not given:
            return asks(("bob", "Find the cat"))
        if len(given) == 1:
            return asks(("carl", "Is it true?"), context_message_ids=[given[0][0]["message_id"]])
        return says(given[1][0]["role"])

    play = Play(ada=ada, bob=echo, carl=echo)
    async with Peers(None, team(), topology=STAR, model=play, tools=[look]) as peers:
        assert (await peers.run("Go", thread_id="t")).response == "agent_response"
    assert "from bob]: heard" in play.prompts["carl"][0]


@pytest.mark.slow
async def test_only_remembered_messages_can_be_passed_on() -> None:
    """MA-062: a peer has only what came to it; that is told as an error."""
    ledger = MemoryLedger()
    peers = await searched(ledger)
    own = (await peers.memory("bob", "t")).last(1)[0].id
    async with Peers(ledger, team(), topology=STAR, model=playing(), tools=[look]) as peers:
        error = await peers.invoke("carl", "Look", caller="ada", thread_id="t", context_message_ids=[own])
    assert error.error_type == "MESSAGE_NOT_FOUND"
    assert own in error.content


@pytest.mark.slow
async def test_a_memory_goes_out_in_every_dialect() -> None:
    """MA-060: to any dialect, valid there, with what the peer said as the assistant's."""
    peers = await searched(MemoryLedger())
    for name in ("ada", "bob"):
        memory = await peers.memory(name, "t")
        last = memory.messages()[-1].content
        for dialect in ("openai-chat", "anthropic-messages", "gemini", "openai-responses"):
            written = memory.to(dialect).value
            read = decode(written, dialect)
            assert (read[-1].text, read[-1].role_hint_for_llm) == (last, "assistant"), dialect
            assert [each for each in check(read, target=dialect) if each.severity == "error"] == []


ASKED = {"id": "call-1", "type": "function", "function": {"name": "look", "arguments": '{"place":"under the bed"}'}}


# Mutant: for_model (_processors.py) gives a letter as its role has it, or _with_results (_memory.py) drops or swaps a result
# -> this test is red.
@pytest.mark.slow
async def test_a_memory_is_given_to_a_model_in_roles_that_every_provider_knows() -> None:
    """MA-060: the whole of it, in order. A model that uses an id again in its next turn gets the result of each turn."""
    places = iter(("under the bed", "on the roof"))

    def look(place: str) -> str:
        """Look somewhere."""
        return f"nothing {next(places)}"

    ledger = MemoryLedger()
    async with Peers(ledger, team(), topology=STAR, model=playing(), tools=[look]) as peers:
        for question in ("One?", "Two?"):
            await peers.run(question, thread_id="t")
    memory = await peers.memory("ada", "t")

    def turn(question: str, given: str) -> list[dict[str, Any]]:
        heard = "heard [Request from ada]: Find the cat"
        return [
            {"role": "user", "content": question},
            {"role": "assistant", "content": "", "name": "ada", "tool_calls": [ASKED]},
            {"role": "tool", "content": given, "name": "look", "tool_call_id": "call-1"},
            {"role": "assistant", "content": "[Request to bob]: Find the cat"},
            {"role": "user", "content": f"[Response from bob]: {heard}"},
            {"role": "assistant", "content": f"agent_response:{heard}", "name": "ada"},
        ]

    system = {"role": "system", "content": "You are ada.\n\nYou can ask other agents with invoke_agent: bob, carl."}
    expected = [system, *turn("One?", "nothing under the bed"), *turn("Two?", "nothing on the roof")]
    assert memory.to_llm_format() == expected
    assert {each["role"] for each in expected} < VALID_ROLES


# Mutant: for_model (_processors.py) has the words of others as the assistant's, PeerMemory.to encodes without `as_policy`, or
# _with_results (_memory.py) yields a result without its call as it is -> this test is red.
@pytest.mark.slow
async def test_messages_of_another_agent_are_not_given_to_the_model_as_the_peers_own() -> None:
    """MA-060, MA-062: ada passes on a call, its result and her answer. Carl's model gets them as another agent's."""
    ledger = MemoryLedger()
    peers = await searched(ledger)
    rows = await peers.memory("ada", "t")
    passed = [rows.by_role("assistant")[0], *rows.by_role("tool"), rows.last(1)[0]]
    async with Peers(ledger, team(), topology=STAR, model=playing(), tools=[look]) as peers:
        more: Any = {"caller": "ada", "thread_id": "t", "context_message_ids": [each.id for each in passed]}
        await peers.invoke("carl", "What do you think?", **more)
        memory = await peers.memory("carl", "t")
    assert list(memory)[:3] == passed
    said = "agent_response:heard [Request from ada]: Find the cat"
    told = memory.to_llm_format()
    assert told[:3] == [
        {"role": "user", "content": '[Message from ada]: look({"place":"under the bed"})'},
        {"role": "user", "content": "[Result of look]: nothing under the bed"},
        {"role": "user", "content": f"[Message from ada]: {said}"},
    ]
    assert [each["role"] for each in told[3:]] == ["system", "user", "assistant"]
    assert [each for each in check(decode(told, "openai-chat"), "openai-chat") if each.severity == "error"] == []
    words = [each for each in decode(memory.to("openai-chat").value, "openai-chat") if each.text == said]
    assert [(each.policy, each.role_hint_for_llm) for each in words] == [("ada", "user")]


@cache
def remembered() -> PeerMemory:
    async def main() -> PeerMemory:
        return await (await searched(MemoryLedger(), "One?", "Two?", "Three?")).memory("ada", "t")

    return run(main())


def _longest_that_fits(memory: PeerMemory, most: int, cost: Callable[[Message], int]) -> list[Message]:
    """Return the expected window, found by trying: the system messages, and the longest whole end of the rest."""
    system, *rest = memory
    for begin in range(len(rest)):
        tried = Conversation([system, *rest[begin:]])
        is_whole = tried.orphans() == tried.open_calls() == ()
        if is_whole and sum(map(cost, tried)) <= most:
            return list(tried)
    return [system]


# Mutant: PeerMemory.window (_memory.py) forgets `keep`, or has only what the system said, or Conversation.window cuts a pair
# -> this test is red.
@pytest.mark.slow
@settings(max_examples=30)
@given(count=st.integers(0, 30), tokens=st.integers(0, 800))
def test_a_window_has_the_longest_end_that_fits_and_cuts_no_pair(count: int, tokens: int) -> None:
    """MA-060: by number, by tokens; system messages are always in it, and older messages are left out."""
    memory = remembered()

    assert list(memory.window(count)) == _longest_that_fits(memory, count, lambda _: 1)
    assert list(memory.window(tokens=tokens)) == _longest_that_fits(memory, tokens, estimate_tokens)
    assert list(memory.window(len(memory))) == list(memory)


@pytest.mark.parametrize(("remember", "told"), [(0, 0), (1, 1), (5, 2)])
async def test_a_model_gets_the_latest_exchanges_and_they_are_not_stored_again(remember: int, told: int) -> None:
    """MA-060: finished exchanges are remembered; the thread has them once."""
    seen: list[int] = []

    class Noting(Play):
        async def _play(self, messages: Any, info: Any) -> ModelResponse:
            prompts = [part for each in messages for part in each.parts if part.part_kind == "user-prompt"]
            seen.append(len(prompts))
            return await super()._play(messages, info)

    ledger = MemoryLedger()
    play = Noting(ada=line(calls(("look", {"place": "here"}))))
    async with Peers(ledger, team(), model=play, tools=[look], limits=PeerLimits(remember=remember)) as peers:
        for question in ("One?", "Two?", "Three?"):
            await peers.run(question, thread_id="t")
    assert seen[-1] == told + 1
    texts = [_text(each) for each in await talk_in(ledger, "t")]
    assert [each for each in texts if each.endswith("?")] == ["One?", "Two?", "Three?"]


@pytest.mark.slow
async def test_failed_and_unfinished_exchanges_are_not_given_to_the_model() -> None:
    """MA-060: bob is asked twice at once, and once more: its model gets the finished exchanges only."""
    told: dict[str, list[str]] = {}

    class Noting(Play):
        async def _play(self, messages: Any, info: Any) -> ModelResponse:
            parts = [part for each in messages for part in each.parts if part.part_kind == "user-prompt"]
            *before, asked = [str(part.content).removeprefix("[Request from ada]: ") for part in parts]
            told[asked] = before
            return await super()._play(messages, info)

    def bob(asked: str, given: Sequence[Any]) -> ModelResponse:
        if "fails" in asked:
            raise RuntimeError("gone")
        return line(calls(("look", {"place": "here"})))(asked, given)

    ada = line(asks(("bob", "one"), ("bob", "two")), asks(("bob", "fails")), asks(("bob", "three")))
    specs = [spec("ada"), spec("bob", tools=("look",))]
    more: Any = {"topology": star("ada", ["bob"]), "tools": [look], "patience": QUICK}
    async with Peers(None, specs, model=Noting(ada=ada, bob=bob), **more) as peers:
        assert (await peers.run("Go", thread_id="t")).status == "completed"
    assert (told["one"], told["two"]) == ([], [])
    assert sorted(told["three"]) == ["one", "two"]


def _text(message: Message) -> str:
    return "".join(getattr(part, "text", "") for part in message.parts)


async def test_a_turn_that_calls_a_tool_and_a_peer_is_accepted_as_it_goes_to_a_model() -> None:
    """MA-060: the results of a turn stand directly after it (AP106), whatever else was asked in it."""
    ledger = MemoryLedger()
    both = calls(("invoke_agent", {"target": "bob", "request": "Find the cat"}), ("look", {"place": "bed"}))
    played = Play(ada=line(both), bob=echo, carl=echo)
    async with Peers(ledger, team(), topology=STAR, model=played, tools=[look]) as peers:
        await peers.run("Where is the cat?", thread_id="t")
    told = (await peers.memory("ada", "t")).to_llm_format()

    assert [each for each in check(decode(told, "openai-chat"), "openai-chat") if each.severity == "error"] == []
    assert sorted(each["role"] for each in told) == [
        "assistant",
        "assistant",
        "assistant",
        "system",
        "tool",
        "user",
        "user",
    ]

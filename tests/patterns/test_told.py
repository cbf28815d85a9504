"""The creator and the subscribers of a thread get its result; the caller that asked for a stream gets the words."""

from typing import Any

import pytest
from tests.patterns.chains import QUESTION, Witness, branch, chain_on, known, said_in, types_of
from tests.patterns.test_life import Held

from antiphon.ledger import heads_of
from antiphon.patterns.postchain import PostChain
from antiphon.protocol import AgentStreamChunk, ThreadResult
from antiphon.protocol.flows import find_flow


def _listen(chain: PostChain) -> list[tuple[str, Any]]:
    heard: list[tuple[str, Any]] = []
    chain.on_message(lambda client, said: heard.append((client, said)))
    return heard


async def _subscribe(chain: PostChain, thread_id: str, *names: str) -> None:
    for name in names:
        subscribe = {"type": "SUBSCRIBE_THREAD", "sender": name, "data": {"thread_id": thread_id}}
        answer = await chain.send(subscribe)
        assert (answer["type"], answer["data"]["subscriber"]) == ("THREAD_SUBSCRIBED", f"client/{name}")


@pytest.mark.slow
async def test_the_creator_and_each_subscriber_get_the_result_once() -> None:
    """CH-112, CH-104: subscribed before the start, during the run, and twice; again at the end of the next turn."""
    witness = Witness(on_request=(held := Held("intention")))
    async with chain_on(witness=witness, grace=5) as chain:
        heard = _listen(chain)
        data = {"user_id": "u", "initial_input": QUESTION}
        made = await chain.send({"type": "CREATE_THREAD", "sender": "ada", "data": data})
        thread_id = made["data"]["thread_id"]
        await _subscribe(chain, thread_id, "bob", "ada")
        await chain.start(thread_id)
        await held.reached.wait()
        await _subscribe(chain, thread_id, "eve", "bob")
        held.released.set()
        result = await chain.wait(thread_id)
        assert [client for client, _ in heard] == ["client/ada", "client/bob", "client/eve"]
        assert {(said.status, said.response) for _, said in heard} == {("completed", result.response)}
        assert all(isinstance(said, ThreadResult) for _, said in heard)
        heard.clear()
        await chain.run("And coffee?", thread_id=thread_id)
        assert [client for client, _ in heard] == ["client/ada", "client/bob", "client/eve"]
        unknown = await chain.send({"type": "SUBSCRIBE_THREAD", "data": {"thread_id": "nobody"}})
        assert unknown["data"]["error_code"] == "THREAD_NOT_FOUND"


@pytest.mark.slow
async def test_a_subscriber_gets_the_result_from_the_next_process() -> None:
    """G13: the subscription is in the ledger. The next process sends the same results, from any row on."""
    ledger = await known()
    async with chain_on(ledger, Witness(on_request=(held := Held("intention"))), grace=5) as chain:
        thread_id = await chain.create(QUESTION)
        await chain.start(thread_id)
        await held.reached.wait()
        await _subscribe(chain, thread_id, "bob")
        held.released.set()
        whole = await chain.wait(thread_id)
    rows = await said_in(ledger, thread_id)
    subscribed = next(seq for seq, row in enumerate(rows, 1) if "THREAD_SUBSCRIBED" in str(types_of([row])))
    for place in [each for each in ledger.ends[thread_id] if each >= subscribed][::6]:
        left = await branch(ledger, thread_id, place)
        async with chain_on(left, grace=5) as chain:
            assert (await chain.wait(thread_id)).response == whole.response
        told = [each for each in types_of(await said_in(left, thread_id)) if "THREAD_RESULT" in each]
        assert len(told) == 2, place


@pytest.mark.slow
async def test_flow_one_ends_with_the_result_whatever_other_subscribers_there_are() -> None:
    """CH-111, CH-112: also where the client subscribes to its own thread."""
    async with chain_on(grace=5) as chain:
        thread_id = await chain.create(QUESTION)
        await _subscribe(chain, thread_id, "local")
        await chain.start(thread_id)
        await chain.wait(thread_id)
        rows = await said_in(chain.ledger, thread_id)
        assert types_of(rows)[-1] == "thread -> client: THREAD_RESULT"
        assert str(types_of(rows)).count("THREAD_RESULT") == 1
        assert find_flow("thread-execution").check(rows).state == "complete"


async def test_words_are_streamed_only_to_the_caller_that_asked_and_are_not_stored() -> None:
    """CH-078: pieces with their numbers, then the answer; the ledger has the answer alone."""
    async with chain_on(grace=5) as chain:
        heard = _listen(chain)
        invoke = {"agent_id": "agent/yield", "input": "Hello"}
        for stream, sender in ((False, "bob"), (True, "ada")):
            answer = await chain.send({"type": "INVOKE_AGENT", "sender": sender, "data": {**invoke, "stream": stream}})
            assert answer["type"] == "AGENT_INVOKED"
        assert {client for client, _ in heard} == {"client/ada"}
        assert all(isinstance(said, AgentStreamChunk) for _, said in heard)
        assert "".join(said.text for _, said in heard) == answer["data"]["result"]["response"]
        rows = [row for head in await heads_of(chain.ledger) for row in await said_in(chain.ledger, head.thread_id)]
        assert "AGENT_STREAM_CHUNK" not in str(types_of(rows))

"""Flows as automata: threads that run conform, and what does not is found at its first message (CH-111 to CH-114)."""

import asyncio

import pytest
from tests.runtime import choir
from tests.runtime.actors import Note, Probe, virtually

from antiphon import decode
from antiphon.messages import Message
from antiphon.protocol import CreateThread, StartThread
from antiphon.protocol.flows import FLOWS, Flow, Step, Verdict, choice, find_flow, maybe, repeat, sequence
from antiphon.runtime import System

EXECUTION, PROCESSING, ERRORS = map(find_flow, ("thread-execution", "phase-processing", "error-handling"))


def _run_thread(failing: frozenset[str] = frozenset()) -> list[Message]:
    async def main() -> list[Message]:
        async with System() as system:
            choir.host(system)
            create = CreateThread(user_id="u", initial_input="hello")
            await system.ask("thread/1", create, thread_id="t", sender=choir.CLIENT)
            await system.ask("thread/1", StartThread(thread_id="t"), thread_id="t", sender=choir.CLIENT)
            await asyncio.sleep(60)
            return [record.message async for record in system.ledger.read("t")]

    choir.AgentManager.failing = failing
    try:
        return virtually(main())
    finally:
        choir.AgentManager.failing = frozenset()


def test_the_flows_of_the_seeds_are_declared() -> None:
    assert [flow.name for flow in FLOWS] == [
        "thread-execution",
        "phase-processing",
        "error-handling",
        "request-response",
        "task-delegation",
        "tool-execution",
        "collaboration",
    ]
    with pytest.raises(ValueError, match="there is no flow 'dance'; there are thread-execution"):
        find_flow("dance")


def test_a_thread_that_runs_through_its_phases_conforms() -> None:
    """CH-111, CH-112, CH-113."""
    messages = _run_thread()

    assert EXECUTION.check(messages, thread="thread", client="client") == Verdict(
        "complete", expected=EXECUTION.check(messages).expected
    )
    assert PROCESSING.check(messages).state == "complete"
    assert ERRORS.check(messages).state == "complete"


def test_an_error_is_handled_as_the_flow_says() -> None:
    """CH-114: the order of the rows of the phase that failed."""
    messages = _run_thread(frozenset({"agent/intention"}))
    watch = ERRORS.watch()
    for message in messages:
        assert watch.see(message).conforms

    assert watch.verdict.state == "complete"
    assert EXECUTION.check(messages).state == "complete"
    assert PROCESSING.check(messages).state == "complete"
    names = [message.payload.option_name for message in messages if hasattr(message.payload, "option_name")]
    assert [names.count(name) for name in ("ERROR_NOTIFICATION", "RESTART", "RETRY")] == [2, 2, 2]


def test_the_first_message_that_should_not_be_there_is_named() -> None:
    messages = _run_thread()
    started = next(i for i, message in enumerate(messages) if message.text == "" and message.kind == "parts")
    swapped = messages[:started] + messages[started + 2 :]
    without_start = [message for message in messages if getattr(message.payload, "option_name", "") != "START_THREAD"]
    verdict = EXECUTION.check(without_start)

    assert EXECUTION.check(swapped).conforms  # what the flow does not know may be there or not
    assert verdict.state == "violated"
    assert verdict.message is not None
    assert verdict.position == without_start.index(verdict.message)
    assert verdict.expected == ("client -> thread: START_THREAD",)


def test_every_message_of_a_flow_that_is_left_out_or_said_twice_is_noticed() -> None:
    """Whatever one message is taken out or doubled, the verdict is not `complete`."""
    messages = [message for message in _run_thread() if message.lane != "effect" and _concerns(message)]
    assert EXECUTION.check(messages).state == "complete"
    for place in range(len(messages)):
        assert EXECUTION.check(messages[:place] + messages[place + 1 :]).state != "complete", place
        assert EXECUTION.check(messages[: place + 1] + messages[place:]).state == "violated", place


def _concerns(message: Message) -> bool:
    watch = EXECUTION.watch()
    watch.see(message)
    return watch.concerned > 0


def test_a_thread_that_is_on_its_way_is_open_and_says_what_comes_next() -> None:
    messages = _run_thread()

    verdict = EXECUTION.check(messages[:3])
    assert (verdict.state, verdict.conforms) == ("open", True)
    assert verdict.expected == ("thread -> client: THREAD_STARTED",)


# ---------------------------------------------------------------- the four flows of agents and workers


def _atlas(*units: tuple[str, str, str, dict[str, object]]) -> list[Message]:
    made = [
        {
            "content": f"content {number}",
            "metadata": {"type": kind, **({"in_reply_to": more["to"]} if "to" in more else {})},
            "task_id": f"t{number}",
            "timestamp": float(number),
            "source_agent": source,
            "target_agent": target,
            "tool_calls": more.get("calls", []),
            "tool_results": more.get("results", []),
        }
        for number, (source, kind, target, more) in enumerate(units)
    ]
    return list(decode(made, "atlas"))


def test_a_question_and_its_answer_are_a_request_and_a_response() -> None:
    flow = find_flow("request-response")
    messages = _atlas(("user", "query", "agent", {}), ("agent", "response", "user", {}))

    assert flow.check(messages).state == "complete"
    assert flow.check(messages[:1]).state == "open"
    assert flow.check([messages[0], messages[0]]).state == "violated"


def test_tasks_and_results_are_a_delegation() -> None:
    flow = find_flow("task-delegation")
    messages = _atlas(
        ("controller", "task", "a", {}),
        ("a", "result", "controller", {"to": "t0"}),
        ("controller", "task", "b", {}),
        ("b", "result", "controller", {"to": "t2"}),
    )

    assert flow.check(messages, controller="controller").state == "complete"
    assert flow.check([messages[0], messages[2]]).state == "violated"


def test_tools_between_question_and_answer_are_tool_execution() -> None:
    flow = find_flow("tool-execution")
    call = {"calls": [{"name": "f", "arguments": {}, "id": "c1"}]}
    result = {"results": [{"name": "f", "result": 1, "call_id": "c1", "status": "success"}]}
    messages = _atlas(
        ("user", "query", "agent", {}),
        ("agent", "tool_request", "tools", call),
        ("tools", "tool_response", "agent", result),
        ("agent", "response", "user", {}),
    )

    assert flow.check([m for m in messages if m.policy != "tools" or m.kind != "parts"]).state == "complete"
    assert flow.check([messages[0], messages[-1]], tool="tools").state == "violated"


def test_a_chat_in_which_nobody_is_addressed_is_judged_by_who_speaks() -> None:
    """An imported history of roles: the user asks, the assistant calls two tools at once, and answers."""
    call = {"type": "function", "function": {"name": "f", "arguments": "{}"}}
    chat = [
        {"role": "user", "content": "how many?"},
        {"role": "assistant", "content": "I look.", "tool_calls": [{"id": "c1", **call}, {"id": "c2", **call}]},
        {"role": "tool", "tool_call_id": "c1", "content": "1"},
        {"role": "tool", "tool_call_id": "c2", "content": "2"},
        {"role": "assistant", "content": "three"},
    ]
    messages = decode(chat, "openai-chat")

    assert find_flow("tool-execution").check(messages).state == "complete"
    verdict = find_flow("request-response").check(messages)
    assert (verdict.state, verdict.position, verdict.expected) == ("violated", len(messages) - 1, ("user -> agent: said",))


def test_work_that_one_worker_hands_to_another_is_collaboration() -> None:
    flow = find_flow("collaboration")
    messages = _atlas(
        ("controller", "task", "a", {}),
        ("a", "result", "b", {"to": "t0"}),
        ("b", "result", "controller", {}),
    )

    assert flow.check(messages).state == "complete"
    assert flow.check([messages[0], messages[2]]).state == "violated"


# ---------------------------------------------------------------- patterns, and watching live


def test_a_role_is_played_by_one_and_in_a_repetition_by_one_at_a_time() -> None:
    once = Flow("x", "", sequence(Step("a", "b", "said"), Step("a", "b", "said")))
    often = Flow("y", "", repeat(Step("a", "b", "said"), maybe(Step("b", "a", "said"))))
    either = Flow("z", "", choice(Step("a", "b", "said"), Step("a", "b", "called")))
    one, other = _atlas(("u", "query", "v", {}), ("w", "query", "v", {}))

    assert once.check([one, one]).state == "complete"
    assert once.check([one, other]).state == "violated"
    assert often.check([one, other, one]).state == "complete"
    assert often.check([one], a="w").state == "violated"
    assert either.check([one]).state == "complete"


def test_a_flow_is_watched_live() -> None:
    async def main() -> None:
        async with System() as system:
            system.watch_flow(flow, lambda thread, verdict: found.append((thread, verdict)), probe="probe")
            system.spawn("probe/1", Probe)
            for thread in ("t", "u"):
                await system.tell("probe/1", Note(text="a"), thread_id=thread, sender="somebody")
            await system.tell("probe/1", Note(text="b"), thread_id="u", sender="somebody")
            await system.tell("probe/1", Note(text="c"), thread_id="u", sender="somebody")

    flow = Flow("one note", "Only one.", Step("writer", "probe", "TEST_NOTE"))
    found: list[tuple[str, Verdict]] = []
    virtually(main())
    ((thread, verdict),) = found
    assert (thread, verdict.state, verdict.expected) == ("u", "violated", ())

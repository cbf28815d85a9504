"""The public API used right. Never run: both type checkers must accept every line."""

from typing import assert_type

from antiphon import (
    Conversation,
    DataPart,
    Message,
    MessageBuilder,
    OptionCallPayload,
    OptionResultBuilder,
    OptionResultPayload,
    PartsPayload,
    TextPart,
    Transition,
    dumps,
    loads,
)
from antiphon.durable import LedgerRun
from antiphon.messages import Json, Kind, Limits, thaw
from antiphon.protocol import CreateThread, Reply, Request, ThreadCreated
from antiphon.runtime import Actor, Backoff, Context, Observer, Supervision, System, handles, run

message = Message(policy="user", payload=PartsPayload(parts=(TextPart(text="hi"), DataPart(data={"a": [1, None]}))))
assert_type(message.kind, Kind)
assert_type(message.text, str)
assert_type(dumps(message), bytes)
assert_type(loads(b""), Message | Conversation)
assert_type(loads(b"", Message), Message)
assert_type(loads(b"", Conversation, limits=Limits(depth=8)), Conversation)

builder = MessageBuilder.next_step(message, policy="assistant").add_text("so").add_option_call("search", {"query": "x"})
call = builder.last_option_call
assert_type(call, Message)
assert_type(OptionResultBuilder.response_to(call).success([1, 2]), Message)

match call.payload:
    case PartsPayload(parts=parts):
        assert_type(len(parts), int)
    case OptionCallPayload(arguments=arguments):
        assert_type(arguments["query"], Json)
        thaw(arguments)["query"] = "mine"
    case OptionResultPayload(result=result):
        assert_type(result, Json)

conversation = Conversation([message]).append(call)
assert_type(conversation[0], Message)
assert_type(conversation[:1], Conversation)
assert_type(conversation.window(3), Conversation)
assert_type(conversation.transitions(), tuple[Transition, ...])


class Sum(Reply, frozen=True, type="SUM"):
    value: int


class Add(Request[Sum], frozen=True, type="ADD"):
    numbers: tuple[int, ...]


class Adder(Actor):
    @handles
    async def add(self, add: Add, context: Context) -> Sum:
        assert_type(await context.ask("adder/2", add), Sum)
        assert_type(await context.ask("adder/2", context.message, within=1.0), Message)
        return Sum(value=sum(add.numbers))


class Foreman(Actor):
    async def started(self, context: Context) -> None:
        boss = context.system.supervise("supervisor/adders", Supervision(backoff=Backoff(first=1.0)))
        context.system.register("adder", Adder, supervisor=boss, restart="transient", concurrency=4)
        context.system.spawn("sum/1", Adder, supervisor=Supervision(intensity=1), capacity=10)


class Watching(Observer):
    def opened(self, system: System) -> None:
        assert_type(system.waiting["adder"], int)

    def closed(self, system: System) -> None:
        system.watch(print)


async def main(system: System) -> int:
    adder = system.spawn("adder/1", Adder)
    total = await system.ask(adder, Add(numbers=(1, 2)), thread_id="sums")
    assert_type(total, Sum)
    assert_type(total.value, int)
    assert_type(await system.ask("thread/1", CreateThread(user_id="u", initial_input="hi")), ThreadCreated)
    assert_type(await system.ask(adder, call), Message)
    return total.value


assert_type(run(main(System(observer=Watching()))), int)


async def program(durable: LedgerRun) -> int:
    async def pay(key: str) -> dict[str, int]:
        return {key: 1}

    assert_type(await durable.effect("pay", {"amount": 1}, pay), dict[str, int])
    assert_type(await durable.effect("look", {}, len, effects="none"), int)
    assert_type(durable.input, Json)
    return await durable.effect("count", {}, len)

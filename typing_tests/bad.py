"""The public API used wrong. Never run: each marked line must be an error for both type checkers.

An ignore that ignores nothing is itself an error, so a line that stops being wrong is noticed.
"""

from antiphon import Conversation, Message, MessageBuilder, OptionCallPayload, PartsPayload, TextPart, loads
from antiphon.durable import LedgerRun
from antiphon.protocol import CreateThread, Heartbeat, HeartbeatResponse
from antiphon.runtime import System

text = TextPart(text=3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
message = Message(policy="user")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
text.text = "other"  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]
call = OptionCallPayload(invocation_id="1", option_name="x", arguments={})
call.arguments["a"] = 1  # type: ignore[index]  # pyright: ignore[reportIndexIssue]
PartsPayload(parts=(text,)).parts[0] = text  # type: ignore[index]  # pyright: ignore[reportIndexIssue]
MessageBuilder.next_step("first")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
Conversation([message])[0] = message  # type: ignore[index]  # pyright: ignore[reportIndexIssue]
loads(b"", str)  # type: ignore[type-var]  # pyright: ignore[reportCallIssue, reportArgumentType]


async def main(system: System) -> HeartbeatResponse:
    create = CreateThread(user_id="u", initial_input="hi")
    answer: HeartbeatResponse = await system.ask("thread/1", create)  # type: ignore[arg-type]  # pyright: ignore[reportAssignmentType]
    alive = await system.ask("thread/1", Heartbeat())
    alive.thread_id = "t"  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
    await system.ask("thread/1", "hello")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
    return answer


async def program(run: LedgerRun) -> str:
    await run.effect("pay", {}, lambda: 1)  # type: ignore[arg-type, misc]  # pyright: ignore[reportCallIssue, reportArgumentType]
    await run.effect("pay", {}, str.split, effects="twice")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
    run.input["order"]  # type: ignore[index, call-overload]  # pyright: ignore[reportOptionalSubscript, reportIndexIssue, reportArgumentType, reportCallIssue]
    return await run.effect("pay", {}, len)  # type: ignore[arg-type]  # pyright: ignore[reportReturnType]

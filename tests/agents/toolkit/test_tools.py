"""Tools: how they are registered, checked, started and limited, and how their results are returned."""

import asyncio
import threading
from dataclasses import dataclass
from datetime import date
from typing import Annotated, Any

import pytest
from pydantic import AfterValidator, BaseModel
from pydantic_ai import BinaryContent, FunctionToolset, ImageUrl, ModelRetry, RunContext, Tool, ToolReturn
from pydantic_ai.exceptions import ApprovalRequired, CallDeferred, ToolFailed
from tests.agents.toolkit.kit import call, failure, run_agent, script

from antiphon.agents.toolkit import Toolkit
from antiphon.agents.tools import calculator
from antiphon.errors import RefusedError, ToolServerError
from antiphon.messages import MediaPart, OptionCallPayload, OptionResultPayload, TextPart, thaw


def called(toolkit: Toolkit, tool: str, **arguments: Any) -> OptionResultPayload:
    toolkit.grant("ada")
    return asyncio.run(toolkit.call("ada", tool, arguments))


def result(function: Any, **arguments: Any) -> Any:
    payload = called(Toolkit([function]), getattr(function, "name", None) or function.__name__, **arguments)
    assert not payload.is_error, payload
    return thaw(payload.result)


# ---------------------------------------------------------------- what is registered


def weather(city: str, days: int = 1) -> str:
    """Say what the weather will be.

    Args:
        city: Where.
        days: For how long.
    """
    return f"{city}: {days}"


def test_a_schema_comes_from_type_hints_and_docstring() -> None:
    """AT-035, AT-037, MA-061."""
    tool = Toolkit().add(weather)

    assert (tool.name, tool.description) == ("weather", "Say what the weather will be.")
    assert tool.parameters["properties"] == {
        "city": {"description": "Where.", "type": "string"},
        "days": {"default": 1, "description": "For how long.", "type": "integer"},
    }
    assert tool.metadata() == {"antiphon": {"effects": "once"}}
    assert Toolkit().add(weather, name="w", description="x", effects="none").metadata() == {"antiphon": {"effects": "none"}}


def test_a_tool_of_pydantic_ai_keeps_what_it_says_of_itself() -> None:
    known = Tool(weather, requires_approval=True, timeout=3, metadata={"antiphon": {"effects": "idempotent"}})

    tool = Toolkit().add(known)

    assert (tool.approval, tool.timeout, tool.effects) == (True, 3, "idempotent")
    assert Toolkit().add(known, approval=False, effects="none").approval is False


def test_the_tools_that_come_with_antiphon_say_what_they_are() -> None:
    tool = Toolkit().add(calculator())

    assert (tool.name, tool.effects, tool.untrusted, tool.allows_untrusted) == ("calculator", "none", False, True)
    assert result(calculator(), expression="6*7")


@pytest.mark.parametrize("is_foreign", [False, True])
def test_the_argument_validator_of_a_tool_is_used(is_foreign: bool) -> None:
    done: list[int] = []

    def act(n: int) -> None:
        done.append(n)

    async def check(ctx: RunContext[Any], n: int) -> None:
        if n > 9:
            raise ModelRetry("at most nine")

    toolkit = Toolkit()
    known = Tool(act, args_validator=check)
    if is_foreign:
        toolkit.add_toolset(FunctionToolset([known]))
    else:
        toolkit.add(known)

    assert failure(called(toolkit, "act", n=10)) == ("TOOL_FAILED", "at most nine")
    assert not called(toolkit, "act", n=9).is_error
    assert done == [9]


def test_two_tools_cannot_have_one_name() -> None:
    """AT-035."""
    with pytest.raises(ValueError, match="there is a tool 'weather' already"):
        Toolkit([weather, weather])

    toolkit = Toolkit([weather])
    toolkit.add_toolset(FunctionToolset([weather]), name="late", required=True)
    with pytest.raises(ToolServerError, match="late: tool 'weather': another tool has this name; give the server a prefix"):
        called(toolkit, "weather", city="Oslo")


@pytest.mark.parametrize(
    ("settings", "wrong"),
    [
        ({"retries": 1}, "its effects are .once."),
        ({"retries": -1, "effects": "none"}, "not negative"),
        ({"timeout": 0}, "positive"),
        ({"max_result_bytes": 0}, "positive"),
        ({"concurrency": 0}, "at least one"),
        ({"name": "wеather"}, "not a valid name of a tool"),
    ],
)
def test_a_setting_that_means_nothing_is_refused(settings: dict[str, Any], wrong: str) -> None:
    with pytest.raises(ValueError, match=wrong):
        Toolkit().add(weather, **settings)


def test_a_decorator_adds_and_grants() -> None:
    """What is given to an agent directly is granted to it."""
    toolkit = Toolkit()

    @toolkit.tool(to=["ada"], effects="none")
    def double(n: int) -> int:
        return 2 * n

    assert double(2) == 4
    assert asyncio.run(toolkit.call("ada", "double", {"n": 4})).result == 8
    assert asyncio.run(toolkit.call("bob", "double", {"n": 4})).error_type == "PERMISSION_DENIED"


# ---------------------------------------------------------------- arguments


def even(n: int) -> int:
    if n % 2:
        raise ValueError("it is odd")
    return n


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({}, "required property"),
        ({"n": "4"}, "n: the value is not of type"),
        ({"n": 4, "m": 1}, "Additional properties"),
        ({"n": 3}, "n: Value error, it is odd"),
        ({"n": 4, "on": "someday"}, "on: the value is not valid"),
    ],
)
def test_wrong_arguments_are_an_error_result_and_the_tool_is_not_started(arguments: dict[str, Any], problem: str) -> None:
    """AT-038, AT-042, AT-049: the failure is told, with the place, and without the value."""
    done: list[int] = []

    def act(n: Annotated[int, AfterValidator(even)], on: date | None = None) -> None:
        done.append(n)

    toolkit = Toolkit([act])
    payload = called(toolkit, "act", **arguments)

    assert payload.error_type == "INVALID_ARGUMENTS"
    assert problem in (payload.error_message or "")
    assert done == []
    assert not called(toolkit, "act", n=4, on="2026-01-01").is_error
    assert done == [4]


def test_arguments_that_are_no_json_are_refused() -> None:
    payload = called(Toolkit([weather]), "weather", city=object())

    assert failure(payload)[0] == "INVALID_ARGUMENTS"


def test_the_arguments_of_a_message_can_be_given_as_they_are() -> None:
    """MA-061: a call as a model made it, and its result."""

    def total(items: list[dict[str, int]]) -> int:
        return sum(item["n"] for item in items)

    payload = OptionCallPayload(invocation_id="i", option_name="total", arguments={"items": [{"n": 1}, {"n": 2}]})
    toolkit = Toolkit([total])
    toolkit.grant("ada")

    result = asyncio.run(toolkit.call("ada", "total", payload.arguments, invocation_id=payload.invocation_id))

    assert result == OptionResultPayload(invocation_id="i", option_name="total", result=3)


def test_a_function_is_given_values_of_its_types() -> None:
    class Trip(BaseModel):
        on: date

    def plan(trip: Trip, first: date) -> str:
        return f"{type(trip).__name__} {trip.on.year} {first.year}"

    assert result(plan, trip={"on": "2026-02-03"}, first="2027-01-01") == "Trip 2026 2027"


def test_an_unknown_tool_is_an_error_result() -> None:
    """AT-038, MA-049: a prefix that models add is taken off."""
    assert failure(called(Toolkit([weather]), "wеather", city="x")) == ("UNKNOWN_TOOL", "there is no tool 'wеather'")
    assert called(Toolkit([weather]), "functions.weather", city="x").result == "x: 1"


# ---------------------------------------------------------------- results


@dataclass
class Point:
    x: int
    at: date


@pytest.mark.parametrize(
    ("returned", "stored"),
    [
        (None, None),
        ({"a": [1, 2.5, True, None]}, {"a": [1, 2.5, True, None]}),
        ((1, 2), [1, 2]),
        (10**30, 10**30),
        (Point(1, date(2026, 1, 1)), {"x": 1, "at": "2026-01-01"}),
        (b"\x00\xff", "AP8="),
        (ToolReturn({"a": 1}, metadata={"antiphon": {"untrusted": "a lie"}}), {"a": 1}),
    ],
)
def test_a_result_is_any_json_value(returned: Any, stored: Any) -> None:
    def give() -> Any:
        return returned

    assert result(give) == stored


def test_media_are_parts_of_the_result() -> None:
    def show() -> Any:
        return ["two", BinaryContent(b"png", media_type="image/png"), ImageUrl("https://example.com/a.png")]

    payload = called(Toolkit([show]), "show")

    assert payload.result == "two"
    assert payload.parts == (
        MediaPart(modality="image", url="data:image/png;base64,cG5n", mime="image/png"),
        MediaPart(modality="image", url="https://example.com/a.png"),
    )


def test_extra_content_of_a_tool_return_is_kept() -> None:
    def show() -> Any:
        return ToolReturn("ok", content=["look", BinaryContent(b"x", media_type="application/pdf")])

    payload = called(Toolkit([show]), "show")

    assert payload.parts == (
        MediaPart(modality="document", url="data:application/pdf;base64,eA==", mime="application/pdf"),
        TextPart(text="look"),
    )


def test_a_model_is_given_media_as_media() -> None:
    def show() -> Any:
        return BinaryContent(b"png", media_type="image/png")

    toolkit = Toolkit([show])
    toolkit.grant("clerk")
    ((outcome, content),) = asyncio.run(run_agent(toolkit, script([call("show")])))

    assert outcome == "success"
    assert isinstance(content, BinaryContent)
    assert (content.data, content.media_type) == (b"png", "image/png")


@pytest.mark.parametrize("returned", [object(), float("nan"), "\ud800", {"a": {1: object()}}])
def test_a_result_that_is_no_json_is_an_error_result(returned: Any) -> None:
    def give() -> Any:
        return returned

    assert failure(called(Toolkit([give]), "give"))[0] == "RESULT_INVALID"


def test_a_result_that_is_nested_too_deep_is_an_error_result() -> None:
    def give() -> Any:
        value: Any = 1
        for _ in range(100):
            value = [value]
        return value

    assert failure(called(Toolkit([give]), "give"))[0] == "RESULT_INVALID"


@pytest.mark.slow
def test_a_result_that_is_too_large_is_cut_with_a_mark() -> None:
    """F31: 100 MB from a tool. The tool has run, so this is no failure; the model sees that the result was cut."""

    def flood() -> str:
        return "x" * 100_000_000

    toolkit = Toolkit()
    toolkit.add(flood)
    toolkit.add(flood, name="trickle", max_result_bytes=1000)
    assert str(called(toolkit, "flood").result).endswith("x… [cut after 524,233 of 100,000,000 characters]")
    assert str(called(toolkit, "trickle").result).endswith("x… [cut after 945 of 100,000,000 characters]")


@pytest.mark.slow
def test_texts_beside_a_result_are_cut_and_media_that_are_too_large_are_refused() -> None:
    def flood() -> ToolReturn:
        return ToolReturn("ok", content=["x" * 2_000_000, "y"])

    def paint() -> BinaryContent:
        return BinaryContent(b"png" * 20_000_000, media_type="image/png")

    toolkit = Toolkit([flood, paint])
    shown = called(toolkit, "flood")
    assert shown.result == "ok"
    assert [len(part.text) < 600_000 for part in shown.parts if isinstance(part, TextPart)] == [True, True]
    assert failure(called(toolkit, "paint"))[0] == "RESULT_TOO_LARGE"


# ---------------------------------------------------------------- failures, time, number


def test_an_exception_is_an_error_result_without_traceback_or_secret() -> None:
    """AT-042, AT-050, AT-053, S7."""

    def connect(host: str) -> None:
        password = "hunter2-canary"
        raise ConnectionError(f"postgres://app:{password}@{host} refused, key sk-proj-abcdefghijklmnopqrst\nand more")

    payload = called(Toolkit([connect]), "connect", host="db")

    assert payload.error_type == "ConnectionError"
    assert payload.error_message == (
        "it failed with ConnectionError: postgres://[redacted:url-password]@db refused, key [redacted:api-key]"
    )


@pytest.mark.parametrize("error", [ToolFailed("no such order"), ModelRetry("no such order")])
def test_an_intended_error_of_a_tool_reaches_the_model_unchanged(error: Exception) -> None:
    def find() -> None:
        raise error

    assert failure(called(Toolkit([find]), "find")) == ("TOOL_FAILED", "no such order")


def test_a_model_gets_an_error_and_continues() -> None:
    """AT-042."""

    def find(order: int) -> None:
        raise KeyError(order)

    toolkit = Toolkit([find])
    toolkit.grant("clerk")
    told = asyncio.run(run_agent(toolkit, script([call("find", order=7)], [call("find", "c2", order="x")])))

    assert told == [
        ("failed", "find: it failed with KeyError: 7 (KeyError)"),
        ("failed", 'find: the arguments are wrong: order: the value is not of type "integer" (INVALID_ARGUMENTS)'),
    ]


@pytest.mark.parametrize("error", [ApprovalRequired(), CallDeferred()])
def test_a_tool_cannot_defer_itself(error: Exception) -> None:
    def later() -> None:
        raise error

    code, reason = failure(called(Toolkit([later]), "later"))
    assert (code, reason) == ("TOOL_FAILED", "a tool of a toolkit cannot defer itself; use approval=True, or a rule")


def test_a_refusal_of_an_actor_is_the_tools_failure() -> None:
    def ask() -> None:
        raise RefusedError("the till is closed", "CLOSED")

    assert failure(called(Toolkit([ask]), "ask")) == ("RefusedError", "it failed with RefusedError: the till is closed")


def test_a_tool_that_takes_too_long_is_cancelled() -> None:
    """F31: a tool that hangs."""

    async def hang() -> None:
        await asyncio.Event().wait()

    toolkit = Toolkit()
    toolkit.add(hang, timeout=0.01, effects="none")

    assert failure(called(toolkit, "hang")) == ("TIMEOUT", "it took more than 0.01 s, and was given up")


@pytest.mark.parametrize("as_tool", [False, True], ids=["function", "tool"])
def test_a_function_in_a_thread_that_takes_too_long_is_given_up_too(as_tool: bool) -> None:
    """F31, G21: the call ends with its time, and not with the function."""
    may_end, has_ended = threading.Event(), threading.Event()

    def hang(ctx: RunContext[Any], name: str) -> str:
        may_end.wait(5)
        has_ended.set()
        return f"{ctx.tool_name} {name}"

    toolkit = Toolkit()
    toolkit.add(Tool(hang, timeout=0.01) if as_tool else hang, timeout=0.01, effects="none", to=["ada"])

    async def call() -> OptionResultPayload:
        done = await toolkit.call("ada", "hang", {"name": "x"})
        assert not has_ended.is_set()
        may_end.set()
        return done

    assert failure(asyncio.run(call())) == ("TIMEOUT", "it took more than 0.01 s, and was given up")


def test_a_function_in_a_thread_that_is_in_time_returns_its_result() -> None:
    def look(ctx: RunContext[Any], name: str) -> str:
        return f"{name} in {threading.current_thread() is not threading.main_thread()}"

    toolkit = Toolkit()
    toolkit.add(look, timeout=30, effects="none", to=["ada"])

    assert asyncio.run(toolkit.call("ada", "look", {"name": "x"})).result == "x in True"


def test_a_timeout_of_the_tool_itself_is_its_failure() -> None:
    async def ask() -> None:
        raise TimeoutError("no answer from the till")

    toolkit = Toolkit()
    toolkit.add(ask, timeout=5, effects="none")

    assert failure(called(toolkit, "ask")) == ("TimeoutError", "it failed with TimeoutError: no answer from the till")


def test_a_repeatable_tool_is_retried() -> None:
    tries: list[int] = []

    def flaky() -> str:
        tries.append(1)
        if len(tries) < 3:
            raise OSError("not now")
        return "at last"

    toolkit = Toolkit()
    toolkit.add(flaky, retries=2, effects="idempotent")

    assert called(toolkit, "flaky").result == "at last"
    assert len(tries) == 3


def test_a_final_failure_is_not_retried() -> None:
    tries: list[int] = []

    def find() -> None:
        tries.append(1)
        raise ToolFailed("there is none")

    toolkit = Toolkit()
    toolkit.add(find, retries=5, effects="none")

    assert called(toolkit, "find").is_error
    assert len(tries) == 1


def test_no_more_calls_are_at_work_than_there_are_slots() -> None:
    at_work = most = 0

    async def work(n: int) -> int:
        nonlocal at_work, most
        at_work += 1
        most = max(most, at_work)
        await asyncio.sleep(0)
        at_work -= 1
        return n

    toolkit = Toolkit()
    toolkit.add(work, concurrency=2, effects="none", to=["ada"])

    async def many() -> list[Any]:
        done = await asyncio.gather(*(toolkit.call("ada", "work", {"n": n}) for n in range(10)))
        return [payload.result for payload in done]

    for _ in range(2):  # a toolkit outlives its event loop
        assert asyncio.run(many()) == list(range(10))
    assert most == 2


def test_a_function_that_is_not_async_runs_in_a_thread_of_its_own() -> None:
    """AT-059: two that wait for each other both get on."""
    meeting = threading.Barrier(2, timeout=10)

    def meet() -> str:
        meeting.wait()
        return threading.current_thread().name

    toolkit = Toolkit([meet])
    toolkit.grant("ada")

    async def both() -> set[Any]:
        done = await asyncio.gather(toolkit.call("ada", "meet", {}), toolkit.call("ada", "meet", {}))
        return {payload.result for payload in done}

    assert threading.current_thread().name not in asyncio.run(both())


# ---------------------------------------------------------------- tools of others


def test_tools_of_a_toolset_are_checked_and_limited_like_ours() -> None:
    theirs = FunctionToolset[Any]()

    @theirs.tool
    def whoami(ctx: RunContext[Any], loud: bool = False) -> str:
        return f"{ctx.deps!r} {loud}"

    @theirs.tool_plain(requires_approval=True)
    def wipe() -> None: ...

    toolkit = Toolkit()
    toolkit.add_toolset(theirs, effects="none", by_name={"whoami": {"allows_untrusted": True}})
    tools = asyncio.run(toolkit.tools())

    assert called(toolkit, "whoami", loud=True).result == "None True"
    assert failure(called(toolkit, "whoami", loud="yes"))[0] == "INVALID_ARGUMENTS"
    assert (tools["whoami"].effects, tools["whoami"].allows_untrusted) == ("none", True)
    assert failure(called(toolkit, "wipe"))[0] == "APPROVAL_REQUIRED"


def test_an_agent_sees_only_what_it_may_use() -> None:
    """AT-036, AT-037."""
    toolkit = Toolkit([weather, even])
    toolkit.grant("clerk", "even")

    assert list(asyncio.run(toolkit.tools_of("clerk"))) == ["even"]
    told = asyncio.run(run_agent(toolkit, script([call("weather", city="x")])))
    assert "Unknown tool name: 'weather'" in str(told)

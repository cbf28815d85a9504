"""Endpoints that are compatible with other protocols: OpenAI's chat completions at `/v1`, and Choir's messages at `/choir`.

A model is a pattern: the six phases, or a team whose file was passed to the server. Each request creates a thread in the
ledger; the response header `x-antiphon-thread` has its id. The conversation in the body is the history of the thread, and its
last message is the question. Client-side tools are refused: only the pattern executes calls.

If a client disconnects, the thread is terminated, unless the request has an `Idempotency-Key`: then the same request joins it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from hashlib import sha256
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from pydantic import ConfigDict, Field
from starlette.responses import Response

from antiphon import decode, service
from antiphon._tasks import beside
from antiphon.errors import AntiphonError
from antiphon.messages import current_port
from antiphon.protocol._messages import enclosed_messages
from antiphon.server import _events
from antiphon.server import _values as v
from antiphon.server._answers import Problem, absent, openai_error, problem_of
from antiphon.server._api import SYSTEM, ApiEndpoint, Ask, WithHeaders, answered_before

if TYPE_CHECKING:
    from starlette.types import Receive, Send
    from starlette.types import Scope as Request

    from antiphon.server._access import ServerLimits
    from antiphon.service import ModelExchange, RunReport, Scope

_THREAD: Final = "x-antiphon-thread"
_KEEP_ALIVE: Final = 5.0
"""Seconds after which a stream without words gets a comment, so that nobody in between thinks it is dead."""
_LONGEST_KEY: Final = 200
_IGNORED: Final = (
    *("temperature", "top_p", "max_tokens", "max_completion_tokens", "frequency_penalty", "presence_penalty", "logit_bias"),
    *("seed", "user", "metadata", "store", "reasoning_effort", "verbosity", "service_tier", "prediction"),
    *("prompt_cache_key", "prompt_cache_retention", "safety_identifier", "parallel_tool_calls"),
)
"""What a client may say and a pattern decides itself: its file has the settings of its models."""


class _StreamOptions(v.RequestBody):
    """What a stream has besides the answer."""

    include_usage: bool = False
    include_obfuscation: bool = False


class _TextFormat(v.RequestBody):
    """The form of the answer: only text."""

    type: Literal["text"]


class CompletionRequest(v.RequestBody):
    """A conversation for a model, as OpenAI's chat completions have it."""

    model_config = ConfigDict(extra="allow", json_schema_extra={"description": f"Taken and not used: {', '.join(_IGNORED)}."})

    model: v.Name
    messages: Annotated[list[dict[str, Any]], Field(min_length=1)]
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    n: Literal[1] | None = None
    response_format: _TextFormat | None = None
    modalities: list[Literal["text"]] | None = None


class ModelValue(service.Value):
    """A model."""

    id: str
    object: Literal["model"] = "model"
    created: int = 0
    owned_by: str = "antiphon"


class ModelsValue(service.Value):
    """The models."""

    object: Literal["list"] = "list"
    data: tuple[ModelValue, ...]


class CompletionValue(service.Value):
    """An answer, as OpenAI's chat completions have it. A stream has chunks of it."""

    id: str
    object: str
    created: int
    model: str
    choices: list[dict[str, Any]]
    usage: dict[str, int] | None


# ---------------------------------------------------------------- models


async def _models(ask: Ask) -> ModelsValue:
    """Return the models of this server."""
    return ModelsValue(data=tuple(ModelValue(id=model.name) for model in ask.hub.models.served))


async def _model(ask: Ask) -> ModelValue:
    """Return a model."""
    name = ask.path["model"]
    if ask.hub.models.find(name) is None:
        raise _no_model(name)
    return ModelValue(id=name)


def _no_model(name: str) -> Problem:
    return Problem(404, "model_not_found", f"there is no model {name!r}; GET /v1/models lists them", param="model")


# ---------------------------------------------------------------- the request


def _exchange(ask: Ask) -> tuple[ModelExchange, bool]:
    """Return the exchange of a request, and whether the same one may come again."""
    body: CompletionRequest = ask.body
    for name, value in (body.model_extra or {}).items():
        if name not in _IGNORED and value not in (None, [], False):
            why = "this model has its own tools, and executes no others" if name in _TOOLS else "it is not supported here"
            raise Problem(400, "unsupported_parameter", f"{name}: {why}", param=name)
    if ask.hub.models.find(body.model) is None:
        raise _no_model(body.model)
    conversation = decode({"messages": body.messages}, "openai-chat")
    key, is_kept = ask.headers.get(b"idempotency-key"), False
    thread_id = current_port().new_id()
    if key:
        if len(key) > _LONGEST_KEY:
            raise Problem(400, "bad_request", f"an Idempotency-Key has at most {_LONGEST_KEY} characters")
        digest = sha256(service.to_json({"model": body.model, "messages": body.messages})).hexdigest()
        thread_id, is_kept = ask.hub.keys.thread_of(f"{ask.caller.token.id} {key.decode('latin-1')}", digest), True
    by = ask.caller.token.principal
    return service.ModelExchange(body.model, conversation, thread_id, by), is_kept


_TOOLS: Final = frozenset({"tools", "tool_choice", "functions", "function_call", "web_search_options"})


# ---------------------------------------------------------------- the answer


async def complete(
    ask: Ask, limits: ServerLimits, stopping: asyncio.Event, http: tuple[Request, Receive, Send]
) -> Response | None:
    """Answer a conversation: whole, or while it is written."""
    body: CompletionRequest = ask.body
    exchange, is_kept = _exchange(ask)
    if len(ask.hub.models) + len(ask.hub.runs) >= limits.runs:
        raise Problem(503, "too_many", "this server runs too many threads", headers={"retry-after": "5"})
    text: asyncio.Queue[str | None] = asyncio.Queue()
    task = ask.hub.models.begin(exchange, text.put_nowait if body.stream else None)
    try:
        async with beside(_events.ended(http[1], stopping)) as (ends,):
            if body.stream:
                with ask.hub.access.stream(ask.caller):
                    pieces = _chunks(ask, exchange, _Answer(task, text, ends))
                    await _events.write_lines(pieces, "text/event-stream; charset=utf-8", limits, http, _headers(exchange))
                return None
            await asyncio.wait((task, ends), return_when=asyncio.FIRST_COMPLETED)
        report = _checked(task)
        return Response(service.to_json(_completion(exchange, report)), 200, _headers(exchange), "application/json")
    except Problem as problem:
        problem.headers.update(_headers(exchange))
        raise
    finally:
        if not task.done() and not is_kept and not stopping.is_set():
            await ask.hub.models.cancel(exchange)


class _Answer:
    """An answer while it is written."""

    def __init__(self, task: asyncio.Task[RunReport], text: asyncio.Queue[str | None], ends: asyncio.Future[None]) -> None:
        self.task = task
        self._text = text
        self._ends = ends
        self._sent = ""

    async def words(self) -> AsyncIterator[str | None]:
        """Yield the words of the answer; None where there are none for some time. At the end, the rest of the answer."""
        while not self.task.done() or not self._text.empty():
            next_word = asyncio.ensure_future(self._text.get())
            try:
                waits = (next_word, self.task, self._ends)
                await asyncio.wait(waits, timeout=_KEEP_ALIVE, return_when=asyncio.FIRST_COMPLETED)
            finally:
                if not next_word.done():
                    next_word.cancel()
            if self._ends.done():
                return
            if next_word.done() and not next_word.cancelled():
                if text := self._taken(next_word.result()):
                    yield text
            elif not self.task.done():
                yield None
        answer = _checked(self.task).response or ""
        # The rest of it; if what was sent is not its beginning, it follows after an empty line.
        yield answer.removeprefix(self._sent) if answer.startswith(self._sent) else f"\n\n{answer}"

    def _taken(self, words: str | None) -> str:
        """Return what is sent for words. An answer that is begun anew follows after an empty line."""
        if words is None:
            separator, self._sent = "\n\n" if self._sent else "", ""
            return separator
        self._sent += words
        return words


async def _chunks(ask: Ask, exchange: ModelExchange, answer: _Answer) -> AsyncIterator[bytes]:
    """Yield the events of a stream. An error before the first words is a plain answer, a later one an event."""
    body: CompletionRequest = ask.body
    usage = body.stream_options is not None and body.stream_options.include_usage
    has_begun = has_spoken = False
    try:
        async for words in answer.words():
            if not await ask.hub.access.is_valid(ask.caller):
                raise Problem(401, "unauthorized", "the token is not valid any more")  # noqa: TRY301 (an event, once begun)
            if words is None:
                yield b": \n\n"
            else:
                delta = {"content": words} if has_spoken else {"role": "assistant", "content": words}
                has_spoken = True
                yield _event(_chunk(exchange, [{"index": 0, "delta": delta, "finish_reason": None}], usage=usage))
            has_begun = True
        if not answer.task.done():
            return
        yield _event(_chunk(exchange, [{"index": 0, "delta": {}, "finish_reason": "stop"}], usage=usage))
        if usage:
            yield _event(_chunk(exchange, [], usage=True) | {"usage": _usage(answer.task.result())})
    except (Problem, AntiphonError) as exc:
        if not has_begun:
            raise
        yield _event(openai_error(problem_of(exc)))
    yield b"data: [DONE]\n\n"


def _checked(task: asyncio.Task[RunReport]) -> RunReport:
    """Return the report of an exchange that has an answer.

    Raises:
        Problem: it has none. The client is told not to try again: the thread can be continued.
    """
    if not task.done():
        raise Problem(503, "stopping", "the server stops, or the client is gone")
    report = task.result()
    if report.status == "completed":
        return report
    code = (report.error_code or report.status).lower()
    status = 409 if code == "parked" else 503 if report.status in ("stopped", "interrupted", "paused") else 500
    detail = report.error_message or f"the thread is {report.status}"
    raise Problem(status, code, f"{detail} (thread {report.thread_id})", headers={"x-should-retry": "false"})


def _headers(exchange: ModelExchange) -> dict[str, str]:
    return {_THREAD: exchange.thread_id, "x-request-id": exchange.thread_id}


def _completion(exchange: ModelExchange, report: RunReport) -> CompletionValue:
    message = {"role": "assistant", "content": report.response or "", "refusal": None}
    return CompletionValue(
        id=f"chatcmpl-{exchange.thread_id}",
        object="chat.completion",
        created=_created(),
        model=exchange.model,
        choices=[{"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}],
        usage=_usage(report),
    )


def _chunk(exchange: ModelExchange, choices: list[dict[str, Any]], *, usage: bool) -> dict[str, Any]:
    chunk = {
        "id": f"chatcmpl-{exchange.thread_id}",
        "created": _created(),
        "model": exchange.model,
        "object": "chat.completion.chunk",
        "choices": choices,
    }
    return chunk | {"usage": None} if usage else chunk


def _created() -> int:
    return int(current_port().now().timestamp())


def _usage(report: RunReport) -> dict[str, int]:
    prompt, completion = report.input_tokens, report.output_tokens
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def _event(value: Any) -> bytes:
    return b"data: %b\n\n" % service.to_json(value)


# ---------------------------------------------------------------- Choir

_CHOIR_SCOPES: Final[dict[str, Scope]] = {
    **dict.fromkeys(("GET_THREAD_STATUS", "HEARTBEAT"), "read"),
    **dict.fromkeys(("CREATE_THREAD", "START_THREAD", "SUBSCRIBE_THREAD", "MESSAGE"), "send"),
    **dict.fromkeys(("INVOKE_AGENT", "PROCESS_WITH_AGENT"), "send"),
    **dict.fromkeys(("PAUSE_THREAD", "RESUME_THREAD", "TERMINATE_THREAD", "RETRY", "ERROR"), "control"),
    **dict.fromkeys(("PROCESS_PHASE", "PREPARE_CONTEXT"), "control"),
    **dict.fromkeys(
        ("INITIALIZE_PHASE", "UPDATE_AGENT_CONFIG", "SUPERVISE", "RESTART", "STOP", "ERROR_NOTIFICATION"), "admin"
    ),
}
"""The scope that each type needs. What is not here is what actors say to each other: it does not come from outside."""
_STARTING: Final = frozenset({"START_THREAD", "RESUME_THREAD", "INVOKE_AGENT", "PROCESS_WITH_AGENT", "PROCESS_PHASE", "RETRY"})
_RECEIVERS: Final = frozenset(
    {"thread", "agent", "supervisor", "action", "experience", "intention", "observation", "understanding", "yield"}
)
_CHOIR_STATUS: Final = {
    "VALIDATION_ERROR": 422,
    "UNKNOWN_MESSAGE_TYPE": 422,
    "TOO_LARGE": 413,
    "ACTOR_NOT_FOUND": 404,
    "THREAD_NOT_FOUND": 404,
    "INVALID_STATE": 409,
    "ACTOR_STOPPED": 503,
    "TIMEOUT": 504,
}
_CHOIR_SECONDS: Final = 120.0


async def _choir(ask: Ask) -> WithHeaders:
    """Send a message of Choir to the six phases, and return its response; errors are responses, with a status."""
    request: v.ChoirMessage = ask.body
    await _check_choir(ask, request)
    if request.type in _STARTING and len(ask.hub.models) + len(ask.hub.runs) >= ask.hub.runs.most:
        raise Problem(503, "too_many", "this server runs too many threads", headers={"retry-after": "5"})
    message = request.model_dump(exclude_none=True) | {"sender": ask.caller.token.principal}
    response = await (await ask.hub.models.chain()).send(message, within=_CHOIR_SECONDS)
    status = 200
    if response["type"] == "ERROR":
        status = _CHOIR_STATUS.get(str(response["data"].get("error_code")), 500)
    return WithHeaders(response, {}, status)


async def _check_choir(ask: Ask, request: v.ChoirMessage) -> None:
    """Refuse what may not come from outside, or from this caller, by itself or in a RETRY."""
    for kind, data in enclosed_messages(request.type, request.data):
        scope = _CHOIR_SCOPES.get(kind)
        if scope is None:
            raise Problem(422, "unknown_message_type", f"{kind} is no request of the protocol")
        if scope not in ask.caller.token.scopes:
            raise absent()
        match data.get("config"):
            case {"model": str(name)}:
                await ask.hub.runs.check_model(name)
            case _:
                pass
    thread_id = request.data.get("thread_id")
    if isinstance(thread_id, str) and thread_id.startswith(SYSTEM):
        raise absent()
    kind, _, name = (request.receiver or "").partition("/")
    if request.receiver is not None and kind not in _RECEIVERS:
        raise Problem(404, "actor_not_found", "there is no such receiver for messages from outside")
    if kind == "thread" and name != thread_id:
        raise Problem(422, "validation_error", "the receiver is the actor of another thread than `thread_id`")


# ---------------------------------------------------------------- the table


COMPLETIONS: Final = ApiEndpoint(
    "POST",
    "/v1/chat/completions",
    "send",
    "Answer a conversation, as OpenAI's chat completions do",
    answered_before,
    CompletionValue,
    body=CompletionRequest,
    errors=v.OpenAIErrorValue,
)
ENDPOINTS: Final = (
    COMPLETIONS,
    ApiEndpoint(
        "POST",
        "/choir",
        None,
        "Send a message of Choir's protocol to the six phases; its type decides which scope is needed",
        _choir,
        v.ChoirAnswer,
        body=v.ChoirMessage,
        errors=v.ChoirAnswer,
    ),
    ApiEndpoint(
        "GET",
        "/v1/models",
        "send",
        "Patterns that answer, as models",
        _models,
        ModelsValue,
        errors=v.OpenAIErrorValue,
    ),
    ApiEndpoint(
        "GET",
        "/v1/models/{model}",
        "send",
        "One of them",
        _model,
        ModelValue,
        errors=v.OpenAIErrorValue,
    ),
)

"""External tools: toolsets of Pydantic AI and MCP servers, and the warnings about them.

Tools are listed again for each step, because a server may change them. In a run, the list is recorded: a program that runs
again gets the recorded tools until it reaches a new step. A tool is started only if it is unchanged since it was offered. The
hints of a server about its tools (read-only, idempotent) are not trusted: the caller of `add_mcp` or `add_toolset` declares
them.

A server cannot affect the others. A server that does not start, does not answer or offers invalid tools is left out with a
warning: a row `TOOL_WARNING` of the thread, once for each part of a run, and a line of the log. For a server with
`required=True`, a warning is a `ToolServerError`.

| code | what is left out |
|---|---|
| `SERVER_FAILED` | the server: it does not start, cannot be reached, disconnects, or fails to list its tools |
| `SERVER_TIMEOUT` | the server: it takes too long to start, or to list its tools |
| `NAME_TAKEN` | the tool: another tool has its name; give the server a prefix |
| `NAME_INVALID` | the tool: its name could be mistaken for another |
| `SCHEMA_INVALID` | the tool: its arguments are not a JSON schema that can be used |
| `TOO_MUCH` | the tools beyond the size limit of a row |
"""

from __future__ import annotations

import asyncio
import logging
from base64 import b32encode
from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from functools import cached_property
from hashlib import sha256
from itertools import islice
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from pydantic_ai import RunContext
from pydantic_ai.tools import ToolDefinition
from pydantic_ai.toolsets import AbstractToolset, PrefixedToolset, ToolsetTool
from pydantic_ai.usage import RunUsage

from antiphon.agents._config import known_names
from antiphon.agents.durability._tool_call import RecordedLists
from antiphon.agents.toolkit._tool import (
    TOOL_CHANGED,
    TOOL_FAILED,
    ConcurrencyLimit,
    Schema,
    ToolkitTool,
    ToolRefusal,
    ToolSettings,
    canonical,
    check_by,
    declared_settings,
    is_tool_name,
    tool_names,
)
from antiphon.durable._run import LedgerRun, current_effect
from antiphon.errors import HistoryMismatchError, SetupError, ToolServerError
from antiphon.messages import RUNTIME_POLICY, DataPart, Json, Message, PartsPayload
from antiphon.messages._arguments import check_each
from antiphon.messages._long_values import cut_text
from antiphon.messages._settings import current_limits
from antiphon.runtime._effects import confirmed
from antiphon.runtime._rows import is_too_large, text_of

if TYPE_CHECKING:
    from pydantic_ai.mcp import CallToolFunc, ToolResult

# ---------------------------------------------------------------- warnings

SERVER_FAILED: Final = "SERVER_FAILED"
SERVER_TIMEOUT: Final = "SERVER_TIMEOUT"
NAME_TAKEN: Final = "NAME_TAKEN"
NAME_INVALID: Final = "NAME_INVALID"
SCHEMA_INVALID: Final = "SCHEMA_INVALID"
TOO_MUCH: Final = "TOO_MUCH"

_TYPE: Final = "TOOL_WARNING"
IDEMPOTENCY_KEY: Final = "antiphon/idempotency-key"
"""The field of `_meta` in a request of MCP: the same for every attempt of a call."""
_LOG: Final = logging.getLogger("antiphon.agents.toolkit")


@dataclass(frozen=True)
class ToolWarning:
    """A problem with a server, or with one of its tools."""

    server: str
    code: str
    reason: str
    tool: str | None = None
    """The tool that is left out; None: the whole server."""

    def to_json(self) -> dict[str, Json]:
        """Return it as it is stored."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    @property
    def sentence(self) -> str:
        """The warning as a sentence."""
        what = "its tools are left out" if self.tool is None else f"its tool {self.tool!r} is left out"
        return f"tool server {self.server!r}: {self.reason}; {what} ({self.code})"


class _Written:
    """The warnings that each part of a run has written."""

    def __init__(self) -> None:
        self.keys: set[tuple[str, str]] = set()


def raise_if_required(warnings: list[ToolWarning]) -> None:
    """Raise the first warning about a required server."""
    for warning in warnings:
        subject = "" if warning.tool is None else f"tool {warning.tool!r}: "
        todo = "mend it, or register it without required=True"
        raise ToolServerError(f"{subject}{warning.reason} ({warning.code}); {todo}", warning.server)


async def warn(warnings: list[ToolWarning], run: LedgerRun | None) -> None:
    """Write warnings, each once in a part of a run."""
    for warning in warnings:
        if run is None:
            _LOG.warning("%s", warning.sentence)
            continue
        name = f"warning:{sha256(canonical(warning.to_json()).encode()).hexdigest()[:24]}"
        key = run.course.invocation_id, name
        written = run.opened.share(_Written).keys
        if key not in written:
            written.add(key)
            _LOG.warning("%s", warning.sentence, extra={"antiphon.thread.id": run.thread_id})
            part = DataPart(data={"type": _TYPE, **warning.to_json()})
            await run.note(Message(policy=RUNTIME_POLICY, payload=PartsPayload(parts=(part,))), key=name)


# ---------------------------------------------------------------- toolsets and servers

_LISTED: Final = "LIST_TOOLS"
"""The name of the listing in the journal."""
_MOST_DESCRIPTION: Final = 16 * 1024
_MOST_READ: Final = 64 * 1024
_MOST_WORDS: Final = 300
_MOST_NAME: Final = 128
_MOST_TOOLS: Final = 1000
"""The maximum number of tools of one server. No model can choose among more."""
_TURN: Final = 100
"""The number of tools after which control returns to the event loop."""
_MOST_WARNINGS: Final = 20
"""The maximum number of warnings about one list: a server may offer any number of invalid tools."""
_PAUSE: Final = 30.0
"""Seconds for which a failed server is not asked again."""


@dataclass(frozen=True)
class _Offer:
    """A tool as offered."""

    name: str
    description: str
    parameters: dict[str, object]
    settings: ToolSettings

    @classmethod
    def of(cls, tool: ToolDefinition) -> _Offer:
        defaults: ToolSettings = {"approval": tool.kind == "unapproved", "timeout": tool.timeout}
        settings: ToolSettings = {**defaults, **declared_settings(tool.metadata)}
        description = cut_text(tool.description or "", _MOST_DESCRIPTION)
        return cls(tool.name, description, dict(tool.parameters_json_schema), settings)

    def to_json(self) -> dict[str, Json]:
        """Return it as it is stored."""
        return {name: getattr(self, name) for name in ("name", "description", "parameters", "settings")}

    def change(self, now: _Offer | None) -> str | None:
        """Return the change of its arguments; None if they are the same. Its description may change."""
        if now is None:
            return "is offered no more"
        return None if now.parameters == self.parameters else "takes other arguments now"


@dataclass(frozen=True)
class _Listed:
    """The tools that a server offers, and warnings about it."""

    offers: list[_Offer]
    warnings: list[ToolWarning]

    def to_json(self) -> Json:
        """Return it in its stored form, without an empty list of warnings."""
        fields: dict[str, Json] = {"tools": [offer.to_json() for offer in self.offers], "digest": self.digest}
        return {**fields, "warnings": [warning.to_json() for warning in self.warnings]} if self.warnings else fields

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> _Listed:
        """Return a list from its stored form."""
        warnings = [ToolWarning(**fields) for fields in stored.get("warnings", ())]
        return cls([_Offer(**offer) for offer in stored["tools"]], warnings)

    @cached_property
    def digest(self) -> str:
        """The digest of the offers."""
        text = canonical([offer.to_json() for offer in self.offers])
        return b32encode(sha256(text.encode()).digest()).decode().rstrip("=").lower()


@dataclass
class ForeignTools:
    """A toolset, and the settings of its tools: of all of them, and of some by name.

    A fault affects only this toolset: it is left out, or one of its tools, with a warning. While a program is connected, a
    failed server is not contacted again for a while, so that its time limit is not spent repeatedly.
    """

    toolset: AbstractToolset[Any]
    settings: ToolSettings
    clean: Callable[[str], str]
    """Removes secrets from messages about it."""
    by_name: Mapping[str, ToolSettings] = field(default_factory=dict[str, ToolSettings])
    name: str = ""
    """Its name in warnings."""
    required: bool = False
    """Whether a warning is an error."""
    within: float = 10.0
    """Seconds that it has to start, and to list its tools."""
    lists_all: bool = False
    """Whether it lists all its tools each time, as MCP servers do. Toolsets of Pydantic AI may offer some of them only
    sometimes."""
    _listed: frozenset[str] | None = field(default=None, repr=False)
    """The names of the tools that it has listed in this process; None: it has not listed any yet."""
    _slots: dict[str, ConcurrencyLimit] = field(default_factory=dict[str, ConcurrencyLimit], repr=False)
    _users: int = field(default=0, repr=False)
    _failed: ToolWarning | None = field(default=None, repr=False)
    _failed_at: float = field(default=0.0, repr=False)

    # ------------------------------------------------------------ names

    @property
    def names(self) -> Collection[str] | None:
        """The names of all its tools; None: they are unknown, or not known yet."""
        return self._listed if self.lists_all else tool_names(self.toolset)

    def may_have(self, name: str) -> bool:
        """Whether it has a tool of this name. Before its tools are known, it may have any with its prefix."""
        if (names := self.names) is not None:
            return name in names
        return not isinstance(self.toolset, PrefixedToolset) or name.startswith(f"{self.toolset.prefix}_")

    def _check_settings(self) -> None:
        """Refuse settings of a tool that does not exist: a misspelled name would leave the tool without them."""
        for name in self.by_name:
            if not self.may_have(name):
                what = f"by_name= has settings for tool {name!r}, and tool server {self.name!r} has none of that name"
                raise SetupError(f"{what}{known_names(name, self.names or ())}")

    # ------------------------------------------------------------ connecting

    @asynccontextmanager
    async def connected(self) -> AsyncGenerator[None]:
        """Stay connected for the duration of the block; if connecting fails, run the block without a connection."""
        is_left_alone = self.down is not None
        self._users += 1
        try:
            is_entered = not is_left_alone and await self._enter()
            try:
                yield
            finally:
                if is_entered:
                    try:
                        await self.toolset.__aexit__(None, None, None)
                    except Exception as exc:  # noqa: BLE001 (its work is done)
                        _LOG.warning("tool server %r: disconnecting failed with %s", self.name, type(exc).__qualname__)
        finally:
            self._users -= 1

    async def _enter(self) -> bool:
        """Connect, and return whether that succeeded. A cancelled connection cleans up after itself."""
        try:
            async with asyncio.timeout(self.within):
                await self.toolset.__aenter__()
        except Exception as exc:  # noqa: BLE001 (any error costs only this server)
            self._fail(exc, "start")
            return False
        self._failed = None
        return True

    def _fail(self, error: Exception, doing: str) -> ToolWarning:
        self._failed, self._failed_at = self._failure(error, doing), asyncio.get_running_loop().time()
        return self._failed

    def check(self) -> None:
        """Check that a required server is connected."""
        if self.required and self.down is not None:
            raise_if_required([self.down])

    @property
    def down(self) -> ToolWarning | None:
        """The reason why it is not contacted: it has failed recently, and a program is connected. None: it is contacted."""
        if self._failed is None or not self._users:
            return None
        return self._failed if asyncio.get_running_loop().time() - self._failed_at < _PAUSE else None

    def _failure(self, error: Exception, doing: str) -> ToolWarning:
        if isinstance(error, TimeoutError):
            reason = f"it did not {doing} within {self.within:g} s"
            return ToolWarning(self.name, SERVER_TIMEOUT, reason)
        message = self.clean(text_of(error)[:_MOST_READ]).strip().partition("\n")[0][:_MOST_WORDS]
        reason = f"it did not {doing}: {type(error).__qualname__}" + (f": {message}" if message else "")
        return ToolWarning(self.name, SERVER_FAILED, reason.encode(errors="replace").decode())

    # ------------------------------------------------------------ listing

    async def tools(
        self, ctx: RunContext[object], run: LedgerRun | None = None, key: str = "tools"
    ) -> tuple[dict[str, ToolkitTool], list[ToolWarning]]:
        """Return its tools and its warnings; in a run that runs again, the recorded ones.

        `key` is the key of the list in the run.

        Raises:
            SetupError: there are settings for a tool that it does not have.
            ToolServerError: something is wrong, and it is required.
        """
        listed = await self._look(ctx) if run is None else await self._recorded(ctx, run, key)
        self._check_settings()
        return {offer.name: self._tool(offer) for offer in listed.offers}, listed.warnings

    async def _look(self, ctx: RunContext[object]) -> _Listed:
        """Request its tools."""
        if (down := self.down) is not None:
            listed = _Listed([], [down])
        else:
            try:
                async with asyncio.timeout(self.within):
                    tools = await self.toolset.get_tools(ctx)
            except Exception as exc:  # noqa: BLE001 (any error costs only this server)
                listed = _Listed([], [self._fail(exc, "list its tools")])
            else:
                self._listed = frozenset(tools) | (self._listed or frozenset())  # a tool may appear and disappear
                listed = await self._judged(tools)
        if self.required:
            raise_if_required(listed.warnings)
        return listed

    async def _judged(self, tools: Mapping[str, ToolsetTool[object]]) -> _Listed:
        """Return the tools that can be offered."""
        offers, warnings, room = list[_Offer](), list[ToolWarning](), current_limits().message_bytes // 2
        for number, (name, tool) in enumerate(islice(tools.items(), _MOST_TOOLS)):
            if number % _TURN == 0:
                await asyncio.sleep(0)
            offer = _Offer.of(tool.tool_def)
            if (problem := _problem(name, offer)) is not None:
                shown = name.encode("ascii", "backslashreplace").decode()[:_MOST_NAME]
                warnings.append(ToolWarning(self.name, problem[0], self.clean(problem[1]), shown))
            elif (room := room - len(canonical(offer.to_json()))) >= 0:
                offers.append(offer)
        shown_warnings = warnings[:_MOST_WARNINGS]
        if (hidden := len(tools) - len(offers) - len(shown_warnings)) > 0:
            reason = f"it offers {len(tools)} tools, and {hidden} more are left out: they are wrong, or too many"
            shown_warnings.append(ToolWarning(self.name, TOO_MUCH, reason, "*"))
        return _Listed(offers, shown_warnings)

    async def _recorded(self, ctx: RunContext[object], run: LedgerRun, key: str) -> _Listed:
        lists, seen = run.opened.share(RecordedLists), list[_Listed]()

        async def look(_: str) -> Json:
            seen[:] = [await self._look(ctx)]
            return lists.write(f"{run.course.invocation_id}/{key}", seen[0].to_json())

        stored = await lists.read(run, await run.effect(key, {}, look, effects="none", option=_LISTED))
        listed = _Listed.from_json(stored)
        if self._listed is not None:  # a continued run may name a tool that the server no longer has
            self._listed |= {offer.name for offer in listed.offers}
        if stored["digest"] == listed.digest:
            return listed
        now = seen[0] if seen else await self._look(ctx)  # the ledger has redacted something that looks like a secret
        if stored["digest"] != now.digest:
            reason = f"{self.toolset.label} offers other tools than thread {run.thread_id!r} says, in {key!r}"
            raise HistoryMismatchError(reason, run.course.to)
        return now

    # ------------------------------------------------------------ starting

    def _tool(self, offer: _Offer) -> ToolkitTool:
        async def start(arguments: dict[str, object], ctx: RunContext[object]) -> Any:
            tool = await self._still(offer, ctx)
            validated = tool.args_validator.validate_python(arguments)
            await check_by(tool.args_validator_func, validated, ctx)
            return await confirmed(lambda: self.toolset.call_tool(offer.name, validated, ctx, tool))

        settings: ToolSettings = {**offer.settings, **self.settings, **self.by_name.get(offer.name, {})}
        return ToolkitTool(
            offer.name,
            offer.description,
            offer.parameters,
            start,
            shared_slots=self._slots.setdefault(offer.name, ConcurrencyLimit(settings.get("concurrency"))),
            **settings,
        )

    async def _still(self, offer: _Offer, ctx: RunContext[object]) -> ToolsetTool[object]:
        """Return a tool that was offered, if it has not changed.

        Raises:
            ToolRefusal: it has changed, or its server does not answer. The model chose another tool than the one that would be
            started.
        """
        try:
            async with asyncio.timeout(self.within):
                tool = (await self.toolset.get_tools(ctx)).get(offer.name)
        except Exception as exc:  # noqa: BLE001 (nothing was started, so any error is a refusal)
            reason = self._failure(exc, "list its tools").reason
            raise ToolRefusal(TOOL_FAILED, f"{reason}; {offer.name!r} was not started", retryable=True) from None
        change = offer.change(None if tool is None else _Offer.of(tool.tool_def))
        if tool is None or change is not None:
            raise ToolRefusal(TOOL_CHANGED, f"{offer.name!r} {change}, and was not started")
        return tool


def _problem(name: str, offer: _Offer) -> tuple[str, str] | None:
    """Return the reason why a tool cannot be offered."""
    if not is_tool_name(name):
        return NAME_INVALID, "its name is not made of ASCII letters, digits, '_', '-' and '.', or is too long"
    if is_too_large(offer.parameters):
        return SCHEMA_INVALID, "its JSON schema is too large, or nested too deep"
    try:
        Schema(offer.parameters)
    except ValueError as exc:
        return SCHEMA_INVALID, str(exc)[:_MOST_WORDS]
    return None


def mcp_toolset(
    server: str | Sequence[str], *, env: Mapping[str, str] | None = None, headers: Mapping[str, str] | None = None
) -> AbstractToolset[Any]:
    """Return the toolset of a server: for a URL over HTTP, for a command over its standard input and output.

    Raises:
        ModuleNotFoundError: a package that it needs is not installed; the message names it.
    """
    try:
        from fastmcp.client.transports import StdioTransport  # noqa: PLC0415 (only where it is used)
        from pydantic_ai.mcp import MCPToolset  # noqa: PLC0415
    except ImportError as exc:
        raise ModuleNotFoundError('MCP servers need more: pip install "antiphon[mcp]"') from exc
    if isinstance(server, str):
        return MCPToolset[Any](
            server, headers=dict(headers or {}), tool_error_behavior="failed", process_tool_call=call_with_key
        )
    command, *arguments = check_each("server", server, str, "'mcp-server-time'")
    transport = StdioTransport(command=command, args=arguments, env=dict(env or {}), keep_alive=False)
    return MCPToolset[Any](transport, tool_error_behavior="failed", process_tool_call=call_with_key)


async def call_with_key(_: RunContext[Any], call: CallToolFunc, name: str, arguments: dict[str, Any]) -> ToolResult:
    """Call a tool of an MCP server with the idempotency key of the effect in the metadata of the request.

    No check can close the gap between the last check of the lease and the first byte. The server can, by this key.
    """
    effect = current_effect()
    return await call(name, arguments, metadata=None if effect is None else {IDEMPOTENCY_KEY: effect.key})


def server_name(server: str | Sequence[str]) -> str:
    """Return the default name of a server, without secrets in its address or its arguments."""
    if not isinstance(server, str):
        return " ".join(word.rpartition("/")[2] for word in server[:2])[:_MOST_NAME]
    parts = urlsplit(server)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"[:_MOST_NAME]


def bare_context() -> RunContext[object]:
    """Return the context of a tool that is called outside of an agent's run."""
    nobody: Any = None
    return RunContext[object](deps=None, model=nobody, usage=RunUsage())

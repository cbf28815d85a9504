"""What a toolkit protects in a thread: no program continues without the toolkit, and sensitive values are never stored.

**Guards.** A toolkit checks permissions and asks people. A program that is restarted without the toolkit, and gives the same
functions to the agent as plain tools, would execute calls that a person has denied. So the thread records the toolkit of an
agent: a row `TOOLKIT_GUARD`, with the tools that the agent may call, and those of them that a person must approve.

| the thread has | and the program | it gets |
|---|---|---|
| a mark of a run of an agent | continues that run without a toolkit | `UnguardedToolError` |
| a mark of a run of an agent | gives it a tool of the toolkit as a plain tool | `UnguardedToolError` |
| a tool that must be approved | gives it to any agent as a plain tool | `UnguardedToolError` |
| a tool that must be approved, for an agent | gives it to that agent in a toolkit that does not ask | `UnguardedToolError` |
| anything else | has more tools, or other grants | no error |

Marks record that a tool must be approved. So does each question to a person and each decision to ask one, such as for
untrusted content. The arguments for which a rule asks may change.

**Secrets.** A tool of a toolkit names its sensitive arguments. When a model calls it, their values are removed from the
model's answer before the answer is stored, and before the agent sees it: the thread, the next prompt and the history that the
agent returns have `[redacted:sensitive]`. The values are kept in memory while the run is open, and are put back when the tool
is started. If a value appears later in the run (in a tool's result or error, or in a model's answer), it is removed there,
too.

So the values are lost with the process. A call that was executed is recorded and is not executed again. A call that has not
started is refused without them: the model gets that error, and may send them again.
"""

from __future__ import annotations

import json
import re
from base64 import b32encode
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Final, TypeAlias, cast

import orjson
from pydantic import BaseModel, ValidationError
from pydantic_ai.exceptions import UserError
from pydantic_ai.tools import ToolDefinition

from antiphon.errors import UnguardedToolError
from antiphon.messages import RUNTIME_POLICY, DataPart, Json, JsonObject, Message, OptionCallPayload, PartsPayload, thaw
from antiphon.messages._keys import parent_of
from antiphon.runtime._rows import APPROVE

# ---------------------------------------------------------------- toolkits

_GUARD: Final = "TOOLKIT_GUARD"
_DECISION: Final = "TOOL_PERMISSION"
TAINTED: Final = "this turn has read untrusted content"
"""The prefix of the reason if a person is asked only because of taint."""


@dataclass(frozen=True)
class Cover:
    """The rules that a toolkit enforces for an agent."""

    toolkit: str
    agent: str
    tools: tuple[str, ...]
    """The tools that the agent may call."""
    asks: tuple[str, ...]
    """The tools that a person must approve, always or by a rule."""
    run: str | None = None
    """The run of the agent, if its id is stable."""
    lenient: frozenset[str] = field(default=frozenset(), compare=False)
    """The tools that may be called after untrusted content was read; not stored."""

    @property
    def digest(self) -> str:
        """Its SHA-256, in base 32: hexadecimal digits may look like a card number, and be redacted."""
        content = orjson.dumps([self.toolkit, self.agent, self.tools, self.asks, self.run])
        return b32encode(sha256(content).digest()).decode().rstrip("=").lower()

    def row(self) -> Message:
        """Return it as a mark for the thread; its id is that of its place."""
        mark: dict[str, Json] = {
            "type": _GUARD,
            "toolkit": self.toolkit,
            "agent": self.agent,
            "digest": self.digest,
            "tools": list(self.tools),
            "asks": list(self.asks),
        }
        if self.run is not None:
            mark["run"] = self.run
        payload = PartsPayload(parts=(DataPart(data=mark),))
        return Message(id=self.digest, policy=RUNTIME_POLICY, payload=payload, lane="control", correlation_id=_GUARD)


class _Mark(BaseModel):
    """A mark that was read from a row."""

    toolkit: str
    agent: str
    tools: tuple[str, ...]
    asks: tuple[str, ...]
    run: str | None = None


class _Asked(BaseModel):
    """The call that a question to a person, or a decision to ask one, refers to."""

    agent: str
    tool: str
    reason: str


class ThreadGuards:
    """The toolkits of the agents of a thread, as its rows record them."""

    def __init__(self) -> None:
        self.calls: dict[tuple[str, str], str] = {}
        """The tool calls of earlier attempts of the run: their digests, by course and id."""
        self._covers: set[Cover] = set()
        self._begun: dict[str, set[Cover]] = {}
        """By run of an agent."""
        self._asks: dict[str, dict[str, set[str]]] = {}
        """By tool and agent: whether a person is always asked, or only because of taint."""
        self._here: dict[str, frozenset[str]] = {}
        """By run of an agent: its toolkit in this program."""

    # ------------------------------------------------------------ reading the thread

    def read_row(self, message: Message, root: str) -> None:
        """Read a row of the thread; `root` is the run that reads it."""
        payload = message.payload
        if message.lane == "effect":
            self._read_call(message, root)
        elif message.lane != "control" or message.policy != RUNTIME_POLICY:
            return  # a message of the talk lane proves nothing, whatever it contains
        elif isinstance(payload, OptionCallPayload):
            if payload.option_name == APPROVE:
                self._read_question(payload.arguments)
        elif isinstance(payload, PartsPayload):
            match payload.parts:
                case (DataPart(data=JsonObject() as data),):
                    self._read_data(data)
                case _:
                    pass

    def _read_call(self, message: Message, root: str) -> None:
        payload, parent_id = message.payload, message.parent_id
        if not isinstance(payload, OptionCallPayload) or parent_id is None:
            return
        course = parent_of(payload.invocation_id)
        if not f"{course}/".startswith(f"{root}/"):
            return
        arguments = payload.arguments.get("arguments")
        digest = arguments.get("digest") if isinstance(arguments, JsonObject) else None
        if isinstance(digest, str):
            self.calls[course, parent_id] = digest

    def _read_data(self, data: JsonObject) -> None:
        if data.get("type") == _DECISION and data.get("verdict") == "ask":
            self._read_question(data)
        elif data.get("type") == _GUARD:
            try:
                mark = _Mark.model_validate(thaw(data))
            except ValidationError:
                return
            self._add(Cover(mark.toolkit, mark.agent, mark.tools, mark.asks, mark.run))

    def _read_question(self, data: Mapping[str, Json]) -> None:
        try:
            asked = _Asked.model_validate(dict(data))
        except ValidationError:
            return
        self._ask(asked.tool, asked.agent, TAINTED if asked.reason.startswith(TAINTED) else "")

    def _add(self, cover: Cover) -> None:
        self._covers.add(cover)
        if cover.run is not None:
            self._begun.setdefault(cover.run, set()).add(cover)
        for tool in cover.asks:
            self._ask(tool, cover.agent, "")

    def _ask(self, tool: str, agent: str, why: str) -> None:
        self._asks.setdefault(tool, {}).setdefault(agent, set()).add(why)

    # ------------------------------------------------------------ checking a program

    def enter(self, cover: Cover, thread_id: str) -> Message | None:
        """Let an agent start or continue under a toolkit. Return the mark to write; None if the thread has it.

        Raises:
            UnguardedToolError: the toolkit does not ask for an approval that the thread requires.
        """
        for tool in cover.tools:
            reasons = self._asks.get(tool, {}).get(cover.agent, ())
            is_asked = tool in cover.asks
            if ("" in reasons and not is_asked) or (TAINTED in reasons and not is_asked and tool in cover.lenient):
                reason = f"a person must approve {tool!r} for {cover.agent!r} in thread {thread_id!r}"
                raise UnguardedToolError(f"{reason}, and toolkit {cover.toolkit!r} of this program does not ask: have it ask")
        if cover.run is not None:
            self._here[cover.run] = frozenset(cover.tools)
        if cover in self._covers:
            return None
        self._add(cover)
        return cover.row()

    def check_plain(self, run: str | None, names: Iterable[str], thread_id: str) -> None:
        """Refuse plain tools of an agent that are guarded by a toolkit in this thread.

        Raises:
            UnguardedToolError: one is guarded, or the run started under a toolkit and the program gives the agent none.
        """
        begun = self._begun.get(run or "", ())
        here = self._here.get(run or "")
        if begun and here is None:
            names_of = " and ".join(sorted({repr(cover.toolkit) for cover in begun}))
            reason = f"{run!r} was begun under toolkit {names_of}, and this program goes on with it without a toolkit"
            raise UnguardedToolError(f"{reason}: give the agent the toolkit")
        for name in names:
            is_begun = any(name in cover.tools for cover in begun)
            if (name in self._asks or is_begun) and name not in (here or ()):
                reason = f"{name!r} is a tool of a toolkit in thread {thread_id!r}"
                raise UnguardedToolError(f"{reason}, and this program would start it without: give it in the toolkit")


# ---------------------------------------------------------------- sensitive values

Unit: TypeAlias = dict[str, Any]
"""A request or an answer of Pydantic AI as plain JSON, or a part of one."""

SENSITIVE: Final = "[redacted:sensitive]"
WITHHOLDS: Final = "withholds"
"""The key in a tool's metadata that lists the arguments the toolkit puts back."""
_OWN: Final = "antiphon"
_FEWEST: Final = 4
"""The length of the shortest value that is searched for inside other texts. A shorter one is removed only where it is the
whole text."""
_STRUCTURE: Final = frozenset({"part_kind", "provider_name", "timestamp", "tool_call_id", "tool_kind", "tool_name"})
"""Fields that identify a part of a message, and are never sensitive."""
_REDACTED: Final = re.compile(r"\[redacted:[^\]]*\]")


def is_redacted(value: object) -> bool:
    """Whether a value is the mark of a removed value, removed here or by the ledger."""
    return isinstance(value, str) and _REDACTED.fullmatch(value) is not None


@dataclass(frozen=True)
class SecretArguments:
    """The arguments of tools that are removed from a model's answer."""

    tools: Mapping[str, tuple[frozenset[str], frozenset[str]]]
    """By tool, its sensitive names and all its names. Arguments with unknown names are removed, too."""

    @classmethod
    def of(cls, tools: Iterable[ToolDefinition]) -> SecretArguments:
        """Return the sensitive arguments of the tools of a request.

        Raises:
            UserError: a tool outside of toolkits has sensitive arguments: nothing would put them back.
        """
        names_by_tool: dict[str, tuple[frozenset[str], frozenset[str]]] = {}
        for tool in tools:
            metadata = (tool.metadata or {}).get(_OWN)
            settings = cast("Unit", metadata) if isinstance(metadata, dict) else Unit()
            if names := settings.get(WITHHOLDS):
                properties = tool.parameters_json_schema.get("properties", {})
                names_by_tool[tool.name] = frozenset(names), frozenset(properties)
            elif settings.get("sensitive"):
                raise UserError(
                    f"tool {tool.name!r} has sensitive arguments: give it to the agent in a Toolkit, which keeps them"
                )
        return cls(names_by_tool)


class Secrets:
    """The sensitive values of a run."""

    def __init__(self) -> None:
        self._calls: dict[tuple[str | None, str | None], Unit] = {}
        """By run of an agent and call, the values by name."""
        self._values: list[Any] = []

    # ------------------------------------------------------------ removing values

    def take_out(self, answer: Unit, withholding: SecretArguments, run_id: str | None) -> Unit:
        """Keep the sensitive values of a model's answer, and return the answer without them."""
        if not withholding.tools and not self._values:
            return answer
        parts = [self._part(part, withholding, run_id) for part in answer["parts"]]
        return self.clean_unit({**answer, "parts": parts})

    def clean_unit(self, unit: Unit) -> Unit:
        """Return a request or an answer without the sensitive values."""
        if not self._values:
            return unit
        return {**unit, "parts": [{name: self._field(name, value) for name, value in part.items()} for part in unit["parts"]]}

    def _field(self, name: str, value: Any) -> Any:
        if name in _STRUCTURE:
            return value
        if name == "args" and isinstance(value, str) and (arguments := _parsed(value)):
            clean = self.clean(arguments)
            return value if clean == arguments else json.dumps(clean)  # it stays JSON
        return self.clean(value)

    def _part(self, part: Unit, withholding: SecretArguments, run_id: str | None) -> Unit:
        if part["part_kind"] != "tool-call" or part["tool_name"] not in withholding.tools or part["args"] is None:
            return part
        sensitive, declared = withholding.tools[part["tool_name"]]
        arguments = _parsed(part["args"])
        withheld = {name: value for name, value in arguments.items() if name in sensitive or name not in declared}
        secrets = self._calls[run_id, part.get("tool_call_id")] = {
            name: value for name, value in withheld.items() if name in sensitive and not is_redacted(value)
        }
        self.remember(secrets.values())
        cleaned: Any = {name: SENSITIVE if name in withheld else value for name, value in arguments.items()}
        return {**part, "args": json.dumps(cleaned) if isinstance(part["args"], str) else cleaned}

    def remember(self, values: Iterable[Any]) -> None:
        """Remove these values from everything that is cleaned from now on."""
        for value in values:
            self._values += [scalar for scalar in _scalars(value) if not is_redacted(scalar) and scalar not in self._values]

    def clean(self, value: Any) -> Any:
        """Return a JSON value without the sensitive values."""
        match value:
            case str():
                return self.clean_text(value)
            case dict():
                return {key: self.clean(item) for key, item in cast("dict[str, object]", value).items()}
            case list():
                return [self.clean(item) for item in cast("list[Any]", value)]
            case _:
                return SENSITIVE if any(type(secret) is type(value) and secret == value for secret in self._values) else value

    def clean_text(self, text: str) -> str:
        """Return a text without the sensitive values."""
        for secret in sorted(map(str, self._values), key=len, reverse=True):
            if secret == text:
                return SENSITIVE
            if len(secret) >= _FEWEST:
                text = text.replace(secret, SENSITIVE)
        return text

    # ------------------------------------------------------------ putting values back

    def put_back(self, arguments: dict[str, object], run_id: str | None, call_id: str | None) -> dict[str, object]:
        """Return the arguments of a call with the removed values put back, as far as this process has them."""
        secrets = self._calls.get((run_id, call_id), {})
        return {name: secrets.get(name, value) if is_redacted(value) else value for name, value in arguments.items()}


def _parsed(args: Any) -> Unit:
    """Return the arguments of a call; empty if they cannot be parsed, because they may contain anything."""
    try:
        arguments = json.loads(args) if isinstance(args, str) else args
    except ValueError:
        return {}
    return cast("Unit", arguments) if isinstance(arguments, dict) else {}


def _scalars(value: Any) -> list[Any]:
    """Return the texts and numbers in a value. Booleans are left out: they are too common to be searched for."""
    match value:
        case dict():
            return [scalar for item in cast("dict[str, object]", value).values() for scalar in _scalars(item)]
        case list():
            return [scalar for item in cast("list[Any]", value) for scalar in _scalars(item)]
        case None | bool() | "":
            return []
        case _:
            return [value]

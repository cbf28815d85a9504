"""Guards: the toolkits under which the agents of a thread started. No program may continue without them.

A toolkit checks permissions and asks people. A program that is restarted without the toolkit, and gives the same functions to
the agent as plain tools, would execute calls that a person has denied. So the thread records the toolkit of an agent: a row
`TOOLKIT_GUARD`, with the tools that the agent may call, and those of them that a person must approve.

| the thread has | and the program | it gets |
|---|---|---|
| a mark of a run of an agent | continues that run without a toolkit | `UnguardedToolError` |
| a mark of a run of an agent | gives it a tool of the toolkit as a plain tool | `UnguardedToolError` |
| a tool that must be approved | gives it to any agent as a plain tool | `UnguardedToolError` |
| a tool that must be approved, for an agent | gives it to that agent in a toolkit that does not ask | `UnguardedToolError` |
| anything else | has more tools, or other grants | no error |

Marks record that a tool must be approved. So does each question to a person and each decision to ask one: threads that are
older than marks have these rows. The arguments for which a rule asks may change.
"""

from __future__ import annotations

from base64 import b32encode
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Final

import orjson
from pydantic import BaseModel, ValidationError

from antiphon.errors import UnguardedToolError
from antiphon.messages import (
    RUNTIME_POLICY,
    DataPart,
    Json,
    JsonObject,
    Message,
    OptionCallPayload,
    PartsPayload,
    thaw,
)
from antiphon.messages.keys import parent_of

_GUARD: Final = "TOOLKIT_GUARD"
_DECISION: Final = "TOOL_PERMISSION"
_APPROVE: Final = "APPROVE"
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
        said = orjson.dumps([self.toolkit, self.agent, self.tools, self.asks, self.run])
        return b32encode(sha256(said).digest()).decode().rstrip("=").lower()

    def row(self) -> Message:
        """Return it as a mark for the thread; its id is that of its place."""
        said: dict[str, Json] = {
            "type": _GUARD,
            "toolkit": self.toolkit,
            "agent": self.agent,
            "digest": self.digest,
            "tools": list(self.tools),
            "asks": list(self.asks),
        }
        if self.run is not None:
            said["run"] = self.run
        payload = PartsPayload(parts=(DataPart(data=said),))
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

    def heard(self, message: Message, root: str) -> None:
        """Read a row of the thread; `root` is the run that reads it."""
        payload = message.payload
        if message.lane == "effect":
            self._heard_call(message, root)
        elif message.lane != "control" or message.policy != RUNTIME_POLICY:
            return  # a message of the talk lane proves nothing, whatever it contains
        elif isinstance(payload, OptionCallPayload):
            if payload.option_name == _APPROVE:
                self._heard_question(payload.arguments)
        elif isinstance(payload, PartsPayload):
            match payload.parts:
                case (DataPart(data=JsonObject() as data),):
                    self._heard_data(data)
                case _:
                    pass

    def _heard_call(self, message: Message, root: str) -> None:
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

    def _heard_data(self, data: JsonObject) -> None:
        if data.get("type") == _DECISION and data.get("verdict") == "ask":
            self._heard_question(data)
        elif data.get("type") == _GUARD:
            try:
                mark = _Mark.model_validate(thaw(data))
            except ValidationError:
                return
            self._add(Cover(mark.toolkit, mark.agent, mark.tools, mark.asks, mark.run))

    def _heard_question(self, said: Mapping[str, Json]) -> None:
        try:
            asked = _Asked.model_validate(dict(said))
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

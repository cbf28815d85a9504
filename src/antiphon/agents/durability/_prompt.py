"""The identity of a prompt: a hash of its content, without times and ids, which differ between runs.

**Values.** Functions of a program compute parts of a prompt: instructions and system prompts, such as one with the date. Their
texts are recorded with the requests, each where it differs from the previous one, so that a continued run sends the same texts
(`PromptValues`). Literal texts are not recorded there: a changed one is a changed program.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import chain
from operator import attrgetter, is_
from typing import TYPE_CHECKING, Any, Final, cast

import orjson
from pydantic_ai.messages import InstructionPart, ModelMessage, ModelMessagesTypeAdapter
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import ToolDefinition
from pydantic_core import to_jsonable_python

from antiphon.agents._guards import Unit
from antiphon.durable._changes import short_hash
from antiphon.durable._course import EffectKeys, recorded_arguments
from antiphon.messages import Json, JsonObject, Message, thaw
from antiphon.messages._keys import child_id
from antiphon.runtime._rows import is_too_large

if TYPE_CHECKING:
    from antiphon.durable._run import LedgerRun

_SECRET_SETTINGS = frozenset({"extra_headers"})
"""Settings that may carry credentials: only their names are stored."""
_FIXED = frozenset({str, int, float, bool, type(None), datetime})
_fields_of = cast("Callable[[object], Unit]", attrgetter("__dict__"))
_values_of = Unit.values


def dump(messages: Sequence[ModelMessage]) -> list[Unit]:
    """Return messages of Pydantic AI as JSON."""
    return cast("list[Unit]", ModelMessagesTypeAdapter.dump_python(list(messages), mode="json"))


class HashedPrompt:
    """A prompt as JSON, with a digest of each of its messages.

    A prompt usually extends the one before it: messages that were hashed then are hashed again only if they changed.
    `quoted` has, for each message, the positions of its quoted parts.
    """

    def __init__(
        self,
        messages: Sequence[ModelMessage],
        before: HashedPrompt | None = None,
        *,
        quoted: Sequence[frozenset[int]] | None = None,
        run_id: str | None = None,
    ) -> None:
        readings = {} if before is None else {id(reading.message): reading for reading in before._read}
        earlier = [readings.get(id(message)) for message in messages]
        unchanged = [reading if reading is not None and reading.is_as_read() else None for reading in earlier]
        new = iter(dump([message for message, reading in zip(messages, unchanged, strict=True) if reading is None]))
        self._read: list[_Read] = [
            reading or _Read(message, next(new), places, run_id)
            for message, reading, places in zip(messages, unchanged, quoted or [frozenset[int]()] * len(messages), strict=True)
        ]

    @property
    def units(self) -> list[Unit]:
        """Its messages as JSON."""
        return [reading.unit for reading in self._read]

    @property
    def unquoted(self) -> list[Unit]:
        """Its messages without what is quoted in them, as JSON."""
        return [reading.unquoted for reading in self._read if reading.unquoted is not None]

    @property
    def hash(self) -> str:
        """Its identity: the same for the same content."""
        return short_hash([reading.identity for reading in self._read])

    def marks(self) -> list[str]:
        """Return the mark of each unquoted message in its thread; the same content said twice has two.

        The mark of a request is made from its content and the run in which it first occurs; the mark of an answer from its
        author and time, because its content may be redacted when it is stored.
        """
        counts: dict[str, int] = {}
        marks: list[str] = []
        for reading in self._read:
            if reading.unquoted is None:
                continue
            count = counts[reading.mark_source] = counts.get(reading.mark_source, 0) + 1
            marks.append(reading.mark(count))
        return marks

    def mark_after(self, answer: Unit) -> str:
        """Return the mark of the answer to this prompt, as `marks` of the next prompt returns it."""
        identity = _mark_source(answer)
        return short_hash([identity, 1 + sum(reading.mark_source == identity for reading in self._read)])


class _Read:
    """A message that was read, and its state at that time: the program may change it later."""

    __slots__ = ("_inner", "_inner_read", "_mark", "_seen", "identity", "mark_source", "message", "unit", "unquoted")

    def __init__(self, message: ModelMessage, unit: Unit, quoted: frozenset[int], run_id: str | None) -> None:
        digest = short_hash(_content_of(unit))
        self.message = message
        self.unit = unit
        self.identity = [digest, unit.get("instructions") or None]
        # The rest is the agent's own. Pydantic AI has joined it with the quotation, and has dropped the id of the run.
        rest = [part for place, part in enumerate(unit["parts"]) if place not in quoted]
        own_part: Unit | None = {**unit, "parts": rest, "run_id": unit.get("run_id") or run_id} if rest else None
        self.unquoted = unit if not quoted else own_part
        """None: all of it is quoted."""
        self.mark_source = "" if self.unquoted is None else _mark_source(self.unquoted, digest if not quoted else None)
        self._mark = (0, "")
        self._seen = _seen(message)
        self._inner, self._inner_read = _changeable(message, unit)

    def is_as_read(self) -> bool:
        """Whether nothing that affects the hash has changed. This check is faster than reading the message again."""
        seen = _seen(self.message)
        if len(seen) != len(self._seen) or not all(map(is_, seen, self._seen)):
            return False
        return not self._inner or (self._inner_read is not None and _text(self._inner) == self._inner_read)

    def mark(self, count: int) -> str:
        """Return its mark as the first, second … message of the same content."""
        if self._mark[0] != count:
            self._mark = (count, short_hash([self.mark_source, count]))
        return self._mark[1]


def _seen(message: ModelMessage) -> list[Any]:
    """Return the objects that a message consists of: fields, parts and their fields. Not all can be compared by value."""
    parts = message.parts
    return [*vars(message).values(), *parts, *chain.from_iterable(map(_values_of, map(_fields_of, parts)))]


def _changeable(message: ModelMessage, unit: Unit) -> tuple[list[Any], bytes | None]:
    """Return the mutable values in the parts of a message, such as lists, and their state when they were read."""
    mutable_values = [
        (value, read.get(name))
        for part, read in zip(message.parts, unit["parts"], strict=True)
        for name, value in vars(part).items()
        if type(value) not in _FIXED
    ]
    return [value for value, _ in mutable_values], _text([read for _, read in mutable_values])


def _text(values: list[Any]) -> bytes | None:
    """Return values as text, to compare them; None if that is impossible."""
    try:
        return orjson.dumps(values)
    except TypeError:
        return None


def mark_of(unit: Unit) -> str:
    """Return the mark of a single message."""
    return short_hash([_mark_source(unit), 1])


def _mark_source(unit: Unit, digest: str | None = None) -> str:
    if unit["kind"] == "response":
        return f"response@{unit.get('timestamp')}@{unit.get('model_name')}@{len(unit['parts'])}"
    return f"{digest or short_hash(_content_of(unit))}@{unit.get('run_id')}"


def tools_hash(parameters: ModelRequestParameters) -> str:
    """Return a hash of the tools that a model may call and of the form of its answer."""
    offered = (*parameters.function_tools, *parameters.output_tools)
    tools = [[tool.name, tool.description, tool.parameters_json_schema, tool.strict] for tool in offered]
    return short_hash([tools, parameters.output_mode, parameters.allow_text_output])


def plain_settings(settings: ModelSettings | None) -> Unit:
    """Return the settings of a request as JSON: only the type of a value that is not JSON; nothing of a possible secret."""
    plain = cast("Unit", to_jsonable_python(dict(settings or {}), fallback=lambda value: type(value).__qualname__))
    return {name: True if name in _SECRET_SETTINGS else value for name, value in plain.items()}


def _content_of(unit: Unit) -> list[Any]:
    parts = [{name: value for name, value in part.items() if name != "timestamp"} for part in unit["parts"]]
    return [unit["kind"], parts]


# ---------------------------------------------------------------- values of functions

REQUEST: Final = "model"
"""The key of model requests."""
VALUES: Final = "new_values"
"""The key of the texts that differ from those of the request before."""
_INSTRUCTIONS: Final = "instructions"


@dataclass(frozen=True, slots=True)
class _Text:
    """A text of a function; None: it returned nothing."""

    text: str | None
    hash: str
    """Empty if the text was redacted."""


_SILENT: Final = _Text(None, short_hash(None))


class _LastTexts:
    """The texts of the last request of a run of an agent, from the thread."""

    def __init__(self) -> None:
        self.texts: dict[str, _Text] = {}
        """By the name of the function or its part."""
        self.places: dict[str, str] = {}
        """By the hash of a text, the request whose row has it."""

    def keep(self, name: str, text: _Text, at: str) -> None:
        """Note a text, and the request that has it."""
        self.texts[name] = text
        self.places.setdefault(text.hash, at)

    def all_of(self, texts: Mapping[str, str | None]) -> dict[str, str | None]:
        """Return the texts of a request, and None for each instruction that only the previous request had."""
        gone = [name for name, text in self.texts.items() if text.text is not None and name.startswith(_INSTRUCTIONS)]
        return {**dict.fromkeys(gone), **texts}


class PromptValues:
    """The texts that functions returned for the prompts of a run.

    The row of a request has the texts that differ from those of the request before it in the same run of an agent, by the name
    of the function or its part: the hash of the text, and the text itself or the request that has it. So a text that stays the
    same is recorded once in a run, and each text is stored once.
    """

    def __init__(self) -> None:
        self._recorded: dict[str, dict[str, _Text]] = {}
        """By request, the texts that an earlier attempt has recorded."""
        self._last: dict[str, _LastTexts] = {}
        """By run of an agent."""
        self._system: dict[str, dict[str, str | None]] = {}
        """By run of an agent, the system prompts of its first request."""
        self._next: dict[str, dict[str, str | None]] = {}
        """By run of an agent, all texts of its next request."""

    async def system_prompt(self, run: LedgerRun, name: str) -> str | None:
        """Return the recorded text of a system-prompt function.

        Raises:
            LookupError: there is none; call the function.
        """
        recorded = (await self._of_next_request(run))[f"system:{name}"]
        self.say(run, name, recorded.text)
        return recorded.text

    def say(self, run: LedgerRun, name: str, text: str | None) -> None:
        """Note the text of a system-prompt function, for the first request of an agent."""
        self._system.setdefault(run.course.invocation_id, {})[f"system:{name}"] = text

    async def instructions(self, run: LedgerRun, parts: Sequence[InstructionPart]) -> list[InstructionPart] | None:
        """Return the instructions of the next request of an agent, with the recorded texts of functions; None: no change."""
        agent_run, recorded = run.course.invocation_id, await self._of_next_request(run)
        if not recorded and not any(part.dynamic for part in parts):
            self._next.pop(agent_run, None)
            return None
        counts, instructions = Counter[str](), list[InstructionPart]()
        texts: dict[str, str | None] = {}
        for part in parts:
            if not part.dynamic:
                instructions.append(part)
                continue
            # Its id, if it has one, and its number among those of the same name.
            name = f"{_INSTRUCTIONS}:{part.id}" if part.id is not None else _INSTRUCTIONS
            counts[name] += 1
            name = name if counts[name] == 1 else f"{name}={counts[name]}"
            recorded_text = recorded.get(name, _SILENT)
            text = texts[name] = recorded_text.text if recorded and recorded_text.hash else part.content
            if text is not None:
                instructions.append(part if text == part.content else replace(part, content=text))
        for name, recorded_text in recorded.items():  # a function that returns nothing now
            if name not in texts and name.partition("=")[0] == _INSTRUCTIONS and recorded_text.text is not None:
                texts[name] = recorded_text.text
                instructions.append(InstructionPart(recorded_text.text, dynamic=True))
        self._next[agent_run] = {name: text for name, text in texts.items() if text is not None}
        return instructions

    def take(self, run: LedgerRun) -> Mapping[str, str | None]:
        """Return the texts of a request that is about to be made."""
        agent_run = run.course.invocation_id
        return {**self._system.pop(agent_run, {}), **self._next.get(agent_run, {})}

    def row(self, run: LedgerRun, texts: Mapping[str, str | None]) -> dict[str, Json]:
        """Return the texts of a request that differ from those of the request before, in their stored form."""
        values: dict[str, Json] = {}
        last = self._last_of(run)
        for name, text in last.all_of(texts).items():
            previous = last.texts.get(name)
            if previous is None or previous.text != text:
                at = last.places.get(digest := short_hash(text))
                values[name] = {"hash": digest, "text": text} if at is None else {"hash": digest, "same_as": at}
        return values

    def stored(self, run: LedgerRun, id: str, texts: Mapping[str, str | None]) -> None:
        """Note that the row of a request is stored."""
        last = self._last_of(run)
        for name, text in last.all_of(texts).items():
            if (previous := last.texts.get(name)) is None or previous.text != text:
                last.keep(name, _Text(text, short_hash(text)), id)

    def _last_of(self, run: LedgerRun) -> _LastTexts:
        agent_run = run.course.invocation_id
        if (last := self._last.get(agent_run)) is None:
            last = self._last[agent_run] = _LastTexts()
        return last

    async def _of_next_request(self, run: LedgerRun) -> dict[str, _Text]:
        """Return the recorded texts of the next request of an agent; empty if the request is new."""
        if not (run.is_again or run.journal.has_had_owners(run.thread_id)):
            return {}
        course = run.course
        assert isinstance(course, EffectKeys)  # noqa: S101 (an agent's part of a run is one)
        request = child_id(course.invocation_id, course.peek_key(REQUEST))
        if request not in self._recorded:
            self._recorded[request] = await self._read(run, request)
        return self._recorded[request]

    async def _read(self, run: LedgerRun, request: str) -> dict[str, _Text]:
        """Return the texts of a recorded request: those of the previous request, updated by its row."""
        if (arguments := await _arguments(run, request)) is None:
            return {}
        last = self._last_of(run)
        for name, recorded in _values(arguments).items():
            last.texts[name] = _Text(None, "")
            await self._read_value(run, request, name, recorded)
        return dict(last.texts)

    async def _read_value(self, run: LedgerRun, request: str, name: str, value: Json) -> None:
        """Read a recorded text. If it was redacted, the current text of the function is used, and compared."""
        if not isinstance(value, JsonObject):
            return
        at, digest = value.get("same_as"), value.get("hash")
        if isinstance(at, str):
            candidates = _values(await _arguments(run, at) or {}).values()
            complete = [
                candidate
                for candidate in candidates
                if isinstance(candidate, JsonObject) and "text" in candidate and candidate.get("hash") == digest
            ]
            request, value = at, complete[0] if complete else value
        text = value.get("text")
        if "text" in value and digest == short_hash(text):
            self._last_of(run).keep(name, _Text(cast("str | None", text), str(digest)), request)


async def _arguments(run: LedgerRun, id: str) -> Mapping[str, Json] | None:
    """Return the arguments that identify a recorded request; None if there is none."""
    records = await run.ledger.find(invocation_id=id, thread_id=run.thread_id)
    rows = [record.message for record in records if record.message.lane == "effect"]
    return recorded_arguments(rows[0]) if rows else None


def _values(arguments: Mapping[str, Json]) -> Mapping[str, Json]:
    """Return the texts in the row of a request."""
    values = arguments.get(VALUES)
    return values if isinstance(values, JsonObject) else {}


# ---------------------------------------------------------------- offered tools

OFFERED: Final = "offered"


def offered_tools(parameters: ModelRequestParameters) -> dict[str, dict[str, Json]]:
    """Return the tools of a request by name, as JSON; output tools are marked."""
    tools = {tool.name: _described(tool) for tool in parameters.function_tools}
    return tools | {tool.name: {**_described(tool), "is_output": True} for tool in parameters.output_tools}


def _described(tool: ToolDefinition) -> dict[str, Json]:
    return {"description": tool.description, "parameters": tool.parameters_json_schema, "strict": tool.strict}


class OfferedTools:
    """The tools that the requests of a thread have offered, so that an error can name a changed one. Each is stored once."""

    def __init__(self) -> None:
        self.lists: dict[str, dict[str, str]] = {}
        """By the hash of a list of tools, the hash of each by name."""
        self.tools: dict[str, dict[str, Any]] = {}
        """By hash."""

    def read_row(self, message: Message) -> None:
        """Read a row of the thread."""
        arguments = recorded_arguments(message)
        if arguments is None or not isinstance(offer := arguments.get(OFFERED), JsonObject):
            return
        listing: Any = thaw(offer)
        self.lists.setdefault(str(arguments.get("tools")), listing.get("list", {}))
        for digest, tool in listing.get("tools", {}).items():
            self.tools.setdefault(digest, tool)

    def row(self, list_hash: str, tools: Mapping[str, Mapping[str, Json]]) -> dict[str, Json] | None:
        """Return a list of tools in its stored form, for the row of a request; None if the thread has it."""
        if not tools or list_hash in self.lists:
            return None
        digests = {name: short_hash(tool) for name, tool in tools.items()}
        new = {digests[name]: dict(tool) for name, tool in tools.items() if digests[name] not in self.tools}
        offer: dict[str, Json] = {"list": cast("Json", digests), "tools": cast("Json", new)}
        return {"list": cast("Json", digests)} if is_too_large(offer) else offer

    def stored(self, list_hash: str, offer: Mapping[str, Any]) -> None:
        """Note that a list is stored."""
        self.lists[list_hash] = offer["list"]
        self.tools |= offer.get("tools", {})

    def all(self) -> dict[str, dict[str, Any]]:
        """Return all tools that can be called, by name; for several with one name, the last."""
        tools = {name: self.tools.get(digest, {}) for digests in self.lists.values() for name, digest in digests.items()}
        return {name: tool for name, tool in tools.items() if tool and not tool.get("is_output")}

    def of(self, list_hash: str) -> dict[str, dict[str, Any]] | None:
        """Return the tools of a list by name; None if the thread does not have it."""
        digests = self.lists.get(list_hash)
        return (
            None if digests is None else {name: self.tools.get(digest, {"hash": digest}) for name, digest in digests.items()}
        )

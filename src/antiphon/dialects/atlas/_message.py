"""The structured message: content, metadata, tool calls and results, from one agent to another.

A message is one JSON object in the written form of `_values.py`, a lock, and a flag whether it was sent. These rules make it
safe to share between threads: nothing inside the object is ever changed in place, except that the two tool lists grow; a
write, or a read of more than one field, holds the lock; values are copied in both directions, and the copy of a field is
read-only.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from threading import Lock
from typing import Any, ClassVar, Self, Unpack, cast

from typing_extensions import TypedDict, override

from antiphon.dialects._frozen import frozen
from antiphon.dialects.atlas._fields import (
    FIELDS,
    ToolCall,
    ToolResult,
    ToolStatus,
    decode_call,
    encode_call,
    encode_field,
    encode_message,
    encode_result,
    parse,
)
from antiphon.dialects.atlas._values import Encoder, Encoders, MessageType, copied, decode, decode_fields, refuse
from antiphon.messages._arguments import check_type

_UNKNOWN_TYPE = "unknown"


class Envelope(TypedDict, total=False):
    """The arguments that all factories share."""

    metadata: Mapping[str, Any] | None
    task_id: str | None
    timestamp: float | None
    message_id: str | None


class Routed(Envelope, total=False):
    """An envelope whose factory sets the sender and the receiver, unless they are given."""

    source_agent: str | None
    target_agent: str | None


class Answer(Routed, total=False):
    """An envelope that may have tool calls and results."""

    tool_calls: Iterable[ToolCall | Mapping[str, Any]] | None
    tool_results: Iterable[ToolResult | Mapping[str, Any]] | None


class StructuredMessage:  # noqa: PLW1641 (it changes, so it has no hash)
    """A message between agents: mutable until it is sent, safe to share between threads, equal by content.

    Values that are read are read-only: to change a message, assign the field, or use `update_metadata`, `add_tool_call` and
    `add_tool_result`.

    Raises:
        ValueError: a field has the wrong type, or holds a value that cannot be written as JSON; the error has the path.
        RuntimeError: a message that was sent is changed.
    """

    __slots__ = ("__weakref__", "_data", "_lock", "_sent")

    encoders: ClassVar[Encoders] = {}
    """How to write values of other classes: `{class: function that returns a plain value}`. A subclass may replace it."""

    carried: ClassVar[frozenset[str]] = frozenset(
        {"trace_id", "traceparent", "tracestate", "correlation_id", "request_id", "session_id"}
    )
    """Metadata keys that link related messages: an answer copies them. A subclass may replace it."""

    def __init__(
        self,
        content: str,
        metadata: Mapping[str, object] | None = None,
        task_id: str | None = None,
        tool_calls: Iterable[ToolCall | Mapping[str, object]] | None = None,
        tool_results: Iterable[ToolResult | Mapping[str, object]] | None = None,
        *,
        source_agent: str | None = None,
        target_agent: str | None = None,
        timestamp: float | None = None,
        message_id: str | None = None,
    ) -> None:
        fields = {
            "content": content,
            "metadata": metadata,
            "task_id": task_id,
            "timestamp": timestamp,
            "tool_calls": tool_calls,
            "tool_results": tool_results,
            "source_agent": source_agent,
            "target_agent": target_agent,
            "message_id": message_id,
        }
        self._open_with(encode_message(fields, Encoder(self.encoders)))

    def _open_with(self, data: dict[str, Any]) -> None:
        self._data = data
        self._lock = Lock()
        self._sent = False

    @classmethod
    def _of(cls, data: dict[str, Any]) -> Self:
        message = cls.__new__(cls)
        message._open_with(data)
        return message

    # ------------------------------------------------------------ fields

    @property
    def content(self) -> str:
        """The text of the message."""
        return cast("str", self._data["content"])

    @content.setter
    def content(self, value: str) -> None:
        self._assign("content", value)

    @property
    def metadata(self) -> dict[str, Any]:
        """Data about the message: its `type`, the message that it answers, your own keys. Read-only."""
        return cast("dict[str, Any]", frozen(decode_fields(self._data["metadata"])))

    @metadata.setter
    def metadata(self, value: Mapping[str, Any]) -> None:
        self._assign("metadata", value)

    @property
    def task_id(self) -> str:
        """The task that this and related messages belong to."""
        return cast("str", self._data["task_id"])

    @task_id.setter
    def task_id(self, value: str) -> None:
        self._assign("task_id", value)

    @property
    def timestamp(self) -> float:
        """When it was created, in seconds since 1970."""
        return cast("float", self._data["timestamp"])

    @timestamp.setter
    def timestamp(self, value: float) -> None:
        self._assign("timestamp", value)

    @property
    def tool_calls(self) -> list[dict[str, Any]]:
        """The tools to run, each `{id, name, arguments}`. Read-only; `add_tool_call` adds one."""
        return cast("list[dict[str, Any]]", frozen([decode_call(call) for call in self._items("tool_calls")]))

    @tool_calls.setter
    def tool_calls(self, value: Iterable[ToolCall | Mapping[str, object]]) -> None:
        self._assign("tool_calls", value)

    @property
    def tool_results(self) -> list[dict[str, Any]]:
        """Results of tools, each `{name, result, call_id, status}`, with `error` if it failed. Read-only."""
        return cast("list[dict[str, Any]]", frozen([decode_fields(result) for result in self._items("tool_results")]))

    @tool_results.setter
    def tool_results(self, value: Iterable[ToolResult | Mapping[str, object]]) -> None:
        self._assign("tool_results", value)

    @property
    def source_agent(self) -> str | None:
        """The sender."""
        return cast("str | None", self._data["source_agent"])

    @source_agent.setter
    def source_agent(self, value: str | None) -> None:
        self._assign("source_agent", value)

    @property
    def target_agent(self) -> str | None:
        """The receiver."""
        return cast("str | None", self._data["target_agent"])

    @target_agent.setter
    def target_agent(self, value: str | None) -> None:
        self._assign("target_agent", value)

    @property
    def message_id(self) -> str:
        """The id of this one message: `task_id` is shared by all messages of a task."""
        return cast("str", self._data["message_id"])

    @message_id.setter
    def message_id(self, value: str) -> None:
        self._assign("message_id", value)

    @property
    def extra(self) -> dict[str, Any]:
        """Unknown fields that `from_dict` found. Read-only; `to_dict` writes them back."""
        return cast("dict[str, Any]", frozen({key: decode(value) for key, value in self._data.items() if key not in FIELDS}))

    def _assign(self, name: str, value: object) -> None:
        encoded = encode_field(name, value, Encoder(self.encoders))
        with self._lock:
            self._check_open()
            self._data[name] = encoded

    def _items(self, name: str) -> list[dict[str, Any]]:
        with self._lock:
            return list(self._data[name])

    def update_metadata(self, changes: Mapping[str, object]) -> None:
        """Set some keys of the metadata in one step, and keep the others."""
        encoded = encode_field("metadata", changes, Encoder(self.encoders))
        with self._lock:
            self._check_open()
            self._data["metadata"] = self._data["metadata"] | encoded

    @property
    def tracking(self) -> dict[str, Any]:
        """The metadata that answers copy, such as `trace_id`; `carried` lists the keys."""
        return {name: value for name, value in self.metadata.items() if name in self.carried}

    # ------------------------------------------------------------ sent

    @property
    def sent(self) -> bool:
        """Whether it can no longer be changed."""
        return self._sent

    def seal(self) -> Self:
        """Mark the message as sent: any later change is refused."""
        with self._lock:
            self._sent = True
        return self

    def copy(self) -> Self:
        """Return a copy that can be changed. Give it another `message_id` if both are sent."""
        return self._of(self.to_dict())

    def _check_open(self) -> None:
        if self._sent:
            raise RuntimeError(f"the message {self.message_id!r} was sent and cannot be changed; change its copy()")

    # ------------------------------------------------------------ type

    @property
    def message_type(self) -> str:
        """The type in the metadata; without one, the type that the tool calls or results imply, else `unknown`."""
        kind = decode(self._data["metadata"].get("type"))
        if isinstance(kind, str) and kind:
            return kind
        if self.has_tool_calls:
            return MessageType.TOOL_REQUEST.value
        return MessageType.TOOL_RESPONSE.value if self.has_tool_results else _UNKNOWN_TYPE

    @property
    def reply_to(self) -> str | None:
        """The receiver of the answer: `metadata["reply_to"]` if set, else the sender."""
        named = decode(self._data["metadata"].get("reply_to"))
        return named if isinstance(named, str) and named else self.source_agent

    # ------------------------------------------------------------ tools

    @property
    def has_tool_calls(self) -> bool:
        """Whether it asks for tools to be run."""
        return bool(self._data["tool_calls"])

    @property
    def has_tool_results(self) -> bool:
        """Whether it has results of tools."""
        return bool(self._data["tool_results"])

    def add_tool_call(self, name: str, arguments: Mapping[str, object] | None = None, call_id: str | None = None) -> str:
        """Add a tool call and return its id, which is generated if none is given."""
        fields = {"id": call_id, "name": name, "arguments": arguments}
        call = encode_call(fields, Encoder(self.encoders), ("tool_calls",))
        identity = cast("str", call["id"])
        with self._lock:
            self._check_open()
            if any(other["id"] == identity for other in self._data["tool_calls"]):
                refuse(f"the call id {identity!r} is taken; give another, or none", ("tool_calls",))
            self._data["tool_calls"].append(call)
        return identity

    def add_tool_result(
        self, name: str, result: object, call_id: str, status: ToolStatus = "success", error: str | None = None
    ) -> None:
        """Add the result of the call `call_id`. It need not be a call of this message."""
        outcome = ToolResult(name, result, call_id, status, error)
        encoded = encode_result(outcome, Encoder(self.encoders), ("tool_results",))
        with self._lock:
            self._check_open()
            self._data["tool_results"].append(encoded)

    def unmatched_results(self, *earlier: StructuredMessage) -> list[dict[str, Any]]:
        """Return the results whose call is neither in this message nor in the earlier ones given."""
        calls = self._call_ids(earlier)
        return [result for result in self.tool_results if result["call_id"] not in calls]

    def _call_ids(self, earlier: Iterable[StructuredMessage]) -> set[str]:
        return {call["id"] for message in (self, *earlier) for call in message._items("tool_calls")}

    # ------------------------------------------------------------ checks

    def validation_errors(self, *earlier: StructuredMessage) -> list[str]:
        """Return the faults that a strict reader would find; empty if there are none.

        `earlier` are the messages whose calls the results may answer, such as the tool request.
        """
        return [*self._type_errors(), *self._id_errors(), *self._result_errors(earlier)]

    def _type_errors(self) -> list[str]:
        kind = decode(self._data["metadata"].get("type"))
        if not isinstance(kind, str) or not kind:
            return ["metadata.type: is missing or no text; name a MessageType or a type of your own"]
        if kind == MessageType.TOOL_REQUEST and not self.has_tool_calls:
            return ["tool_calls: a tool_request needs at least one"]
        if kind == MessageType.TOOL_RESPONSE and not self.has_tool_results:
            return ["tool_results: a tool_response needs at least one"]
        return []

    def _id_errors(self) -> list[str]:
        empty = [f"{name}: is empty" for name in ("task_id", "message_id") if not self._data[name]]
        calls = Counter(cast("str", call["id"]) for call in self._items("tool_calls"))
        return empty + [f"tool_calls: {times} calls have the id {call_id!r}" for call_id, times in calls.items() if times > 1]

    def _result_errors(self, earlier: Iterable[StructuredMessage]) -> list[str]:
        calls = self._call_ids(earlier)
        errors: list[str] = []
        seen: set[str] = set()
        for index, result in enumerate(self._items("tool_results")):
            call_id = cast("str", result["call_id"])
            if call_id not in calls:
                errors.append(f"tool_results[{index}]: no call has the id {call_id!r}")
            elif call_id in seen:
                errors.append(f"tool_results[{index}]: the call {call_id!r} already has a result")
            seen.add(call_id)
        return errors

    # ------------------------------------------------------------ factories

    @classmethod
    def create_query(
        cls, content: str, source_agent: str | None = None, target_agent: str | None = None, **envelope: Unpack[Envelope]
    ) -> Self:
        """Ask a question."""
        return cls._create(MessageType.QUERY, content, None, **envelope, source_agent=source_agent, target_agent=target_agent)

    @classmethod
    def create_task(
        cls,
        content: str,
        source_agent: str | None,
        target_agent: str | None,
        task_data: Mapping[str, object] | None = None,
        *,
        reply_to: str | None = None,
        **envelope: Unpack[Envelope],
    ) -> Self:
        """Give work to an agent. `task_data` goes into the metadata; `reply_to` receives the result, else the source does."""
        waiting = {} if reply_to is None else {"reply_to": reply_to}
        envelope["metadata"] = {**(envelope.get("metadata") or {}), **(task_data or {}), **waiting}
        return cls._create(MessageType.TASK, content, None, **envelope, source_agent=source_agent, target_agent=target_agent)

    @classmethod
    def create_response(cls, content: str, original_message: StructuredMessage, **envelope: Unpack[Answer]) -> Self:
        """Answer a message: same task, source and target swapped."""
        return cls._create(MessageType.RESPONSE, content, original_message, **envelope)

    @classmethod
    def create_result(
        cls, content: str, original_message: StructuredMessage | None = None, **envelope: Unpack[Answer]
    ) -> Self:
        """Report the result of a task.

        With another `target_agent` it is an intermediate step: `metadata["reply_to"]` names the agent that waits for the final
        result.
        """
        return cls._create(MessageType.RESULT, content, original_message, **envelope)

    @classmethod
    def create_error(
        cls, error_message: str, original_message: StructuredMessage | None = None, **envelope: Unpack[Answer]
    ) -> Self:
        """Report an error, in answer to a message or on its own."""
        return cls._create(MessageType.ERROR, error_message, original_message, **envelope)

    @classmethod
    def create_status(
        cls, content: str, original_message: StructuredMessage | None = None, **envelope: Unpack[Answer]
    ) -> Self:
        """Report progress."""
        return cls._create(MessageType.STATUS, content, original_message, **envelope)

    @classmethod
    def create_tool_request(
        cls,
        content: str = "",
        tool_calls: Iterable[ToolCall | Mapping[str, object]] | None = None,
        **envelope: Unpack[Routed],
    ) -> Self:
        """Request tool calls. Pass the `task_id` of the message that needs them."""
        return cls._create(MessageType.TOOL_REQUEST, content, None, **envelope, tool_calls=tool_calls)

    @classmethod
    def create_tool_response(
        cls,
        content: str = "",
        original_message: StructuredMessage | None = None,
        tool_results: Iterable[ToolResult | Mapping[str, object]] | None = None,
        **envelope: Unpack[Routed],
    ) -> Self:
        """Return the results of tools, in answer to the request."""
        return cls._create(MessageType.TOOL_RESPONSE, content, original_message, **envelope, tool_results=tool_results)

    @classmethod
    def _create(cls, kind: MessageType, content: str, original: StructuredMessage | None, **envelope: Unpack[Answer]) -> Self:
        """Make a message of a kind: the type is set last, so no other metadata can claim it."""
        if original is not None:
            envelope = _answering(original, envelope)
        envelope["metadata"] = {**(envelope.get("metadata") or {}), "type": kind.value}
        return cls(content, **envelope)

    # ------------------------------------------------------------ serialization

    def to_dict(self, *, redact: Callable[[Any], Any] | None = None) -> dict[str, Any]:
        """Return the message as plain JSON data that the caller owns.

        `redact` gets the data, and returns it without secrets, as `antiphon.ledger.STANDARD_REDACTION.value` does.
        """
        with self._lock:
            data = cast("dict[str, Any]", copied(self._data))
        return data if redact is None else cast("dict[str, Any]", redact(data))

    def to_json(self, *, redact: Callable[[Any], Any] | None = None) -> str:
        """Return the message as JSON text; `redact` is as for `to_dict`."""
        return json.dumps(self.to_dict(redact=redact), ensure_ascii=False)

    @classmethod
    def from_dict(cls, data: Mapping[str, object]) -> Self:
        """Read the output of `to_dict`. Only `content` is required; unknown fields are kept."""
        return cls._of(encode_message(data, Encoder(cls.encoders, written=True)))

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """Read the output of `to_json`."""
        return cls.from_dict(parse(text))

    @override
    def __eq__(self, other: object) -> bool:
        if not isinstance(other, StructuredMessage):
            return NotImplemented
        return type(self) is type(other) and _canonical(self) == _canonical(other)

    @override
    def __repr__(self) -> str:
        shown = ("content", "task_id", "source_agent", "target_agent")
        fields = ", ".join(f"{name}={self._data[name]!r}" for name in shown)
        return f"{type(self).__name__}(type={self.message_type!r}, {fields})"

    @override
    def __reduce__(self) -> tuple[Any, ...]:
        return _revive, (type(self), self.to_dict())


def _revive(cls: type[StructuredMessage], data: dict[str, Any]) -> StructuredMessage:
    return cls.from_dict(data)


def _canonical(message: StructuredMessage) -> str:
    """Return text that is the same for the same content; `1`, `1.0` and `True` differ."""
    return json.dumps(message.to_dict(), sort_keys=True)


def _answering(original: StructuredMessage, envelope: Answer) -> Answer:
    """Return the envelope of an answer: the same task and tracking, to the waiting agent, unless the caller gives another."""
    check_type("original_message", original, StructuredMessage, 'StructuredMessage("How are the sales?")')
    waiting = original.reply_to
    target = envelope.get("target_agent") or waiting
    onward = {} if target == waiting or waiting is None else {"reply_to": waiting}
    links = {"in_reply_to": original.task_id, "in_reply_to_message": original.message_id}
    answer = envelope.copy()
    answer["task_id"] = envelope.get("task_id") or original.task_id
    answer["source_agent"] = envelope.get("source_agent") or original.target_agent
    answer["target_agent"] = target
    answer["metadata"] = {**original.tracking, **onward, **(envelope.get("metadata") or {}), **links}
    return answer

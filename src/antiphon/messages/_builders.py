"""Builders: a short way to make well-formed messages.

The default speaker of a message:

| made by | policy | role_hint_for_llm |
|---|---|---|
| `MessageBuilder`, parts | the builder's, `user` if none is given | `user` or `system` if the policy is called so, else None |
| `MessageBuilder`, option call | the builder's | `assistant` |
| `OptionResultBuilder` | the option that ran, or the given `policy` | `tool` |

A builder never takes the speaker from the previous message: after a tool's result, the next speaker is not the tool.
"""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING, Any, Self

from antiphon.messages._arguments import check_type
from antiphon.messages._content import (
    DataPart,
    MediaPart,
    Modality,
    OptionCallPayload,
    OptionResultPayload,
    Part,
    PartsPayload,
    TextPart,
)
from antiphon.messages._message import Message, RoleHint
from antiphon.messages._settings import current_port

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from datetime import datetime

    from antiphon.messages._json_values import Json


_ROLE_OF_POLICY: dict[str, RoleHint] = {"user": "user", "system": "system"}


class MessageBuilder:
    """Builds one utterance of a policy: text, media and option calls of one step and one turn.

    Taking a call or a message before one was added raises a `ValueError`.
    """

    def __init__(
        self,
        *,
        policy: str = "user",
        step_num: int | None = None,
        role_hint_for_llm: RoleHint | None = None,
        thread_id: str | None = None,
    ) -> None:
        self._policy = policy
        self._step_num = step_num
        self._role_hint: RoleHint | None = role_hint_for_llm
        self._thread_id = thread_id
        self._turn_id = current_port().new_id()
        self._parts: list[Part] = []
        self._calls: list[Message] = []
        self._calls_before_parts = 0
        self._begun: tuple[str, datetime] | None = None
        self._message: Message | None = None

    @classmethod
    def next_step(
        cls, last: Message | int | None = None, *, policy: str = "user", role_hint_for_llm: RoleHint | None = None
    ) -> Self:
        """Begin the step after `last` (a message or a step number); without `last`, step 1."""
        step = _step_of(last)
        number = 1 if step is None else step + 1
        return cls(policy=policy, step_num=number, role_hint_for_llm=role_hint_for_llm, thread_id=_thread_of(last))

    @classmethod
    def continue_step(
        cls, last: Message | int | None = None, *, policy: str = "user", role_hint_for_llm: RoleHint | None = None
    ) -> Self:
        """Continue the step of `last` (a message or a step number); if it has no step, neither has this utterance."""
        step = _step_of(last)
        return cls(policy=policy, step_num=step, role_hint_for_llm=role_hint_for_llm, thread_id=_thread_of(last))

    # ------------------------------------------------------------ adding

    def add_text(self, text: str) -> Self:
        return self._add(TextPart(text=text))

    def add_image(self, prompt_hint: str | None, url: str, *, mime: str | None = None, id: str | None = None) -> Self:
        """Add an image. Without `id`, the id is derived from the content, so the same image always has the same id."""
        return self._add_media("image", prompt_hint, url, mime, id)

    def add_audio(self, prompt_hint: str | None, url: str, *, mime: str | None = None, id: str | None = None) -> Self:
        return self._add_media("audio", prompt_hint, url, mime, id)

    def add_video(self, prompt_hint: str | None, url: str, *, mime: str | None = None, id: str | None = None) -> Self:
        return self._add_media("video", prompt_hint, url, mime, id)

    def add_document(
        self,
        prompt_hint: str | None,
        url: str,
        *,
        mime: str | None = None,
        id: str | None = None,
        file_name: str | None = None,
    ) -> Self:
        """Add a document. `file_name` goes to formats that name files; `prompt_hint` is its label in a prompt."""
        return self._add_media("document", prompt_hint, url, mime, id, file_name=file_name)

    def add_data(self, data: Json) -> Self:
        return self._add(DataPart(data=data))

    def add_option_call(self, option_name: str, arguments: Mapping[str, Json]) -> Self:
        """Add a call with a new invocation id. Each call becomes a separate message; see `to_messages`."""
        invocation = current_port().new_id()
        payload = OptionCallPayload(invocation_id=invocation, option_name=option_name, arguments=arguments)
        self._calls.append(self._make(payload, "assistant", _id_and_time()))
        return self

    def _add_media(
        self, modality: Modality, hint: str | None, url: str, mime: str | None, id: str | None, *, file_name: str | None = None
    ) -> Self:
        check_type("prompt_hint", hint, str | None, "'a hat'")
        check_type("url", url, str, "'https://example.com/hat.png'")
        if hint is not None and "://" in hint and "://" not in url and not url.startswith(("data:", "urn:")):
            raise ValueError(f"the hint comes first, then the URL: add_{modality}({url!r}, {hint!r})")
        content = f"{modality} {url}".encode(errors="surrogatepass")
        media_id = f"media-{sha256(content).hexdigest()[:16]}" if id is None else id
        metadata = {} if file_name is None else {"file": {"name": file_name}}
        return self._add(MediaPart(modality=modality, url=url, mime=mime, prompt_hint=hint, id=media_id, metadata=metadata))

    def _add(self, part: Part) -> Self:
        if not self._parts:
            self._calls_before_parts = len(self._calls)
        if self._begun is None or self._message is not None:
            self._begun = _id_and_time()  # taken at the first part, so that sorting by id or time keeps the order of messages
        self._parts.append(part)
        self._message = None
        return self

    # ------------------------------------------------------------ taking

    @property
    def option_calls(self) -> tuple[Message, ...]:
        """The calls added so far, in order."""
        return tuple(self._calls)

    @property
    def last_option_call(self) -> Message:
        """The call added last."""
        if not self._calls:
            raise ValueError("no option call was added; use add_option_call first")
        return self._calls[-1]

    def to_message(self) -> Message:
        """Return all parts as one message. It returns the same message again until a part is added."""
        if not self._parts:
            raise ValueError("no part was added; use add_text or another add_…, or take to_messages() for calls alone")
        if self._message is None:
            begun = self._begun or _id_and_time()
            self._message = self._make(PartsPayload(parts=tuple(self._parts)), _ROLE_OF_POLICY.get(self._policy), begun)
        return self._message

    def to_messages(self) -> tuple[Message, ...]:
        """Return the calls in order, and the parts message at the place of its first part."""
        parts = (self.to_message(),) if self._parts else ()
        before = self._calls_before_parts if self._parts else len(self._calls)
        return (*self._calls[:before], *parts, *self._calls[before:])

    def _make(
        self, payload: PartsPayload | OptionCallPayload, usual_hint: RoleHint | None, begun: tuple[str, datetime]
    ) -> Message:
        return Message(
            id=begun[0],
            policy=self._policy,
            payload=payload,
            role_hint_for_llm=usual_hint if self._role_hint is None else self._role_hint,
            step_num=self._step_num,
            turn_id=self._turn_id,
            thread_id=self._thread_id,
            created_at=begun[1],
        )


class OptionResultBuilder:
    """Makes the result of one option call. Its `invocation_id` and `option_name` are the call's.

    Another one raises a `ValueError`, and so does a message that is not an option call.
    """

    __slots__ = ("_call", "_invocation_id", "_option_name", "_policy")

    def __init__(self, call: Message, *, policy: str | None = None) -> None:
        check_type("call", call, Message, "MessageBuilder(…).last_option_call")
        if not isinstance(call.payload, OptionCallPayload):
            raise ValueError(  # noqa: TRY004 (the type is right, the kind is not)
                f"only an option_call can be answered; message {call.id!r} is of kind {call.kind!r}"
            )
        self._call = call
        self._invocation_id = call.payload.invocation_id
        self._option_name = call.payload.option_name
        self._policy = self._option_name if policy is None else policy

    @classmethod
    def response_to(cls, call: Message, *, policy: str | None = None) -> Self:
        """Answer a call as the option that ran, or as `policy` (the runtime, for an option that never ran)."""
        return cls(call, policy=policy)

    @property
    def invocation_id(self) -> str:
        return self._invocation_id

    @invocation_id.setter
    def invocation_id(self, invocation_id: str) -> None:
        self._check_same(invocation_id, self._option_name)

    @property
    def option_name(self) -> str:
        return self._option_name

    @option_name.setter
    def option_name(self, option_name: str) -> None:
        self._check_same(self._invocation_id, option_name)

    def success(
        self,
        result: Json = None,
        parts: Iterable[Part] = (),
        *,
        invocation_id: str | None = None,
        option_name: str | None = None,
    ) -> Message:
        """Return the message with the option's result."""
        self._check_same(invocation_id, option_name)
        return self._make(result=result, parts=tuple(parts))

    def error(
        self,
        error_type: str,
        error_message: str,
        retryable: bool = False,
        details: Json = None,
        *,
        invocation_id: str | None = None,
        option_name: str | None = None,
    ) -> Message:
        """Return the message with the option's error."""
        self._check_same(invocation_id, option_name)
        failure = {"is_error": True, "error_type": error_type, "error_message": error_message, "retryable": retryable}
        return self._make(result=details, **failure)

    def _check_same(self, invocation_id: str | None, option_name: str | None) -> None:
        if invocation_id not in (None, self._invocation_id):
            raise ValueError(f"this result answers invocation {self._invocation_id!r}, not {invocation_id!r}")
        if option_name not in (None, self._option_name):
            raise ValueError(f"this result is of option {self._option_name!r}, not {option_name!r}")

    def _make(self, **outcome: Any) -> Message:
        call, port = self._call, current_port()
        return Message(
            policy=self._policy,
            payload=OptionResultPayload(invocation_id=self._invocation_id, option_name=self._option_name, **outcome),
            role_hint_for_llm="tool",
            step_num=call.step_num,
            turn_id=port.new_id(),
            thread_id=call.thread_id,
            lane=call.lane,
            correlation_id=call.correlation_id,
            in_reply_to=call.id,
            parent_id=call.parent_id,
            created_at=port.now(),
        )


def _id_and_time() -> tuple[str, datetime]:
    port = current_port()
    return port.new_id(), port.now()


def _step_of(last: Message | int | None) -> int | None:
    if isinstance(last, Message):
        return last.step_num
    if isinstance(last, bool) or not isinstance(last, int | None):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"a step is a message, a number or None, not {last!r}")
    if last is not None and last < 0:
        raise ValueError(f"a step number is not negative: {last}")
    return last


def _thread_of(last: Message | int | None) -> str | None:
    return last.thread_id if isinstance(last, Message) else None

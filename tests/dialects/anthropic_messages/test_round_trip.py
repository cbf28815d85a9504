"""Anthropic Messages there and back: the same data, also after an edit, also of what is odd; and the meaning without notes."""

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from tests.dialects.anthropic_messages.bodies import ODD, REQUESTS, RESPONSES
from tests.dialects.anthropic_messages.mutations import BODIES, mutated
from tests.providers.types import differences, problems

from antiphon import Conversation, Message, decode, encode
from antiphon.dialects import get
from antiphon.errors import DecodeError
from antiphon.messages import OptionCallPayload, OptionResultPayload, PartsPayload, TextPart
from antiphon.messages._json_values import canonical
from antiphon.testing import check_dialect

NAME = "anthropic-messages"
_EDIT = " (edited)"
_WHOLE = {name: body for name, body in BODIES.items() if name not in ODD}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES.keys())
def test_the_same_data_comes_back(body: Any) -> None:
    encoded = encode(decode(body, NAME), NAME)
    assert differences(body, encoded.value) == []
    assert encoded.losses == ()


@pytest.mark.slow
@pytest.mark.parametrize("body", REQUESTS.values(), ids=REQUESTS.keys())
def test_the_types_of_the_provider_accept_our_requests(body: Any) -> None:
    assert problems(NAME, "request", body) == []


@pytest.mark.parametrize("body", RESPONSES.values(), ids=RESPONSES.keys())
def test_the_types_of_the_provider_accept_our_responses(body: Any) -> None:
    assert problems(NAME, "response", body) == []


@pytest.mark.parametrize("body", _WHOLE.values(), ids=_WHOLE.keys())
def test_it_keeps_what_every_dialect_promises(body: Any) -> None:
    """Unknown keys at every depth, edits, the meaning without notes, a longer history."""
    check_dialect(get(NAME), [body])


@given(mutated())
def test_every_accepted_body_comes_back(body: Any) -> None:
    """A body with keys gone, of other types or twice, at any depth: a typed error, or the same data."""
    try:
        conversation = decode(body, NAME)
    except DecodeError:
        return
    # Names of tools that the format itself refuses are written as ones that it accepts.
    encoded = encode(conversation, NAME)
    assert canonical(encoded.value) == canonical(body)
    assert encoded.losses == ()


@given(mutated())
def test_a_body_that_is_written_without_our_notes_is_stable(body: Any) -> None:
    with suppress(DecodeError):
        encoded = encode(_bare(decode(body, NAME)), NAME)
        again = encode(decode(encoded.value, NAME), NAME)
        assert canonical(again.value) == canonical(encoded.value)
        assert again.losses == ()


def _bare(conversation: Conversation) -> Conversation:
    return Conversation((each.model_copy(update={"metadata": {}}) for each in conversation), tools=conversation.tools)


# ---------------------------------------------------------------- edits


def _edits(message: Message) -> Iterator[Message]:
    """Yield a message with one of its words changed, for each that it has."""
    payload = message.payload
    match payload:
        case PartsPayload():
            for place, part in enumerate(payload.parts):
                if isinstance(part, TextPart):
                    new = part.model_copy(update={"text": part.text + _EDIT})
                    parts = (*payload.parts[:place], new, *payload.parts[place + 1 :])
                    yield message.model_copy(update={"payload": PartsPayload(parts=parts)})
        case OptionCallPayload() if payload.arguments_text is None:
            arguments = {**payload.arguments, "edited": True}
            yield message.model_copy(update={"payload": payload.model_copy(update={"arguments": arguments})})
        case OptionResultPayload() if isinstance(payload.result, str):
            yield message.model_copy(update={"payload": payload.model_copy(update={"result": payload.result + _EDIT})})
        case OptionResultPayload() if payload.is_error:
            words = f"{payload.error_message}{_EDIT}"
            yield message.model_copy(update={"payload": payload.model_copy(update={"error_message": words})})
        case _:
            pass


@pytest.mark.parametrize("body", _WHOLE.values(), ids=_WHOLE.keys())
def test_an_edit_changes_only_itself(body: Any) -> None:
    """Words, arguments and outcomes: unknown keys, forms and settings around them stay."""
    body = _with_unknown_keys(body)
    conversation = decode(body, NAME)
    for place, message in enumerate(conversation):
        for edited in _edits(message):
            messages = [*conversation[:place], edited, *conversation[place + 1 :]]
            after = Conversation(messages, tools=conversation.tools, metadata=conversation.metadata)
            changed = differences(body, encode(after, NAME).value)
            assert len(changed) == 1, changed
            assert "edited" in changed[0]


def _with_unknown_keys(value: Any) -> Any:
    """Return a value with a key more in every object that is not a tool's input."""
    if isinstance(value, dict):
        inner = {key: each if key in {"input", "input_schema"} else _with_unknown_keys(each) for key, each in value.items()}
        return {**inner, "x-not-known": {"kept": [None]}}
    return [_with_unknown_keys(each) for each in value] if isinstance(value, list) else value


def test_the_form_of_content_survives_an_edit() -> None:
    """A text that came as a list of one block is written as one, whatever its role."""
    block = [{"type": "text", "text": "a"}]
    body = {"system": block, "messages": [{"role": role, "content": block} for role in ("user", "system", "assistant")]}
    conversation = decode(body, NAME)
    edited = Conversation((next(_edits(each)) for each in conversation), metadata=conversation.metadata)
    new = [{"type": "text", "text": f"a{_EDIT}"}]
    assert encode(edited, NAME).value == {
        "system": new,
        "messages": [{"role": role, "content": new} for role in ("user", "system", "assistant")],
    }


# ---------------------------------------------------------------- the meaning without our notes


def test_without_notes_only_a_later_instruction_is_lost_from_the_samples() -> None:
    """So the notes hold spellings, not what was said."""
    lost = {
        name: sorted({loss.what for loss in encode(_bare(decode(body, NAME)), NAME).losses})
        for name, body in BODIES.items()
        if name.startswith(NAME)
    }
    assert lost == {
        "anthropic-messages--01-thinking-parallel-tools-error": [],
        "anthropic-messages--02-documents-citations-mid-system": ["speaker", "text"],
        "anthropic-messages--04-response-refusal-empty": ["message"],
    }


# ---------------------------------------------------------------- a longer history


@pytest.mark.parametrize("body", _WHOLE.values(), ids=_WHOLE.keys())
def test_a_longer_history_begins_like_a_shorter_one(body: Any) -> None:
    """Block by block: a cut may fall between the results and the words of one message."""
    conversation = decode(body, NAME)
    whole = list(_flat(encode(conversation, NAME).value))
    for end in range(1, len(conversation) + 1):
        begun = conversation[:end]
        if not begun.open_calls():
            flat = list(_flat(encode(begun, NAME).value))
            assert whole[: len(flat)] == flat


def _flat(body: Any) -> Iterator[Any]:
    for message in body.get("messages", [body]):
        content = message["content"]
        for block in [content] if isinstance(content, str) else content:
            yield message["role"], block

"""A prompt is identified by its content, and unchanged messages of the previous prompt are not read again."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from pydantic_ai.messages import (
    BinaryContent,
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)

from antiphon.agents.durability import _prompt
from antiphon.agents.durability._prompt import HashedPrompt

TIME = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def _history() -> list[Any]:
    return [
        ModelRequest([UserPromptPart(["Look.", "There."], timestamp=TIME)], instructions="Be kind.", run_id="r"),
        ModelResponse([TextPart("So."), ToolCallPart("look", {"at": [1, 2]}, "call-1")], timestamp=TIME, model_name="m"),
        ModelRequest([ToolReturnPart("look", {"found": 1}, "call-1", timestamp=TIME)], run_id="r"),
    ]


def _say(prompt: HashedPrompt) -> tuple[str, list[str], list[dict[str, Any]]]:
    return prompt.hash, prompt.marks(), prompt.units


CHANGES: dict[str, Callable[[list[Any]], object]] = {
    "a word": lambda messages: setattr(messages[1].parts[0], "content", "No."),
    "an argument": lambda messages: messages[1].parts[1].args["at"].append(3),
    "an argument of another type": lambda messages: messages[1].parts[1].args.update(at=[True, 2]),
    "a result": lambda messages: messages[2].parts[0].content.update(found=2),
    "a piece of a question": lambda messages: messages[0].parts[0].content.pop(),
    "a part more": lambda messages: messages[2].parts.append(UserPromptPart("And?", timestamp=TIME)),
    "a part less": lambda messages: messages[1].parts.pop(0),
    "another part": lambda messages: messages[1].parts.__setitem__(0, TextPart("Oh.")),
    "other instructions": lambda messages: setattr(messages[0], "instructions", "Be brief."),
    "another run": lambda messages: setattr(messages[2], "run_id", "s"),
    "another message": lambda messages: messages.__setitem__(1, ModelResponse([TextPart("Oh.")], timestamp=TIME)),
}


@pytest.mark.parametrize("name", CHANGES)
def test_messages_changed_since_the_last_prompt_are_read_again(name: str) -> None:
    """G9: after a change of the history in place, the hash is that of a fresh reading."""
    messages = _history()
    before = HashedPrompt(messages)
    CHANGES[name](messages)

    prompt = HashedPrompt(messages, before)

    assert _say(prompt) == _say(HashedPrompt(messages))
    assert _say(prompt) != _say(before)


def test_unchanged_messages_are_not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[ModelMessage] = []
    dump = _prompt.dump

    def counted(messages: Any) -> list[dict[str, Any]]:
        read.extend(messages)
        return dump(messages)

    monkeypatch.setattr(_prompt, "dump", counted)
    messages = _history()
    prompt: HashedPrompt | None = None
    for end in range(1, len(messages) + 1):
        prompt = HashedPrompt(messages[:end], prompt)
    assert read == messages
    assert _say(HashedPrompt(messages, prompt)) == _say(HashedPrompt(_history()))


def test_the_messages_of_a_run_are_known_without_the_history_before_it() -> None:
    messages = _history()
    assert _say(HashedPrompt(messages[1:], HashedPrompt(messages))) == _say(HashedPrompt(messages[1:]))


def test_messages_that_cannot_be_compared_are_read_again() -> None:
    messages: list[ModelMessage] = [ModelRequest([UserPromptPart([BinaryContent(b"x", media_type="image/png")])])]
    assert _say(HashedPrompt(messages, HashedPrompt(messages))) == _say(HashedPrompt(messages))


def test_messages_that_cannot_be_written_as_text_are_read_again() -> None:
    """G9: an integer of more than 64 bits cannot be compared, and hides no change."""
    call = ToolCallPart("look", {"at": 2**70}, "call-1")
    messages: list[ModelMessage] = [ModelResponse([call], timestamp=TIME, model_name="m")]
    before = HashedPrompt(messages)
    assert isinstance(call.args, dict)
    call.args["at"] = 2**71
    assert HashedPrompt(messages, before).hash == HashedPrompt(messages).hash != before.hash

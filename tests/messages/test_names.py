"""Names: one spelling, nothing hidden."""

from typing import Any

import pytest
from pydantic import ValidationError

from antiphon import ForeignPart, MediaPart, Message, OptionCallPayload, PartsPayload
from antiphon.messages import Tool
from antiphon.messages._names import Name, is_name

GOOD = ["user", "a", "agent one", "kind/key", "call_0|fc_1", "研究员", "Zoë", "Ærøskøbing", "x̂", "বাংলা", "😀", "x" * 512]
BAD = {
    "empty": "",
    "too long": "x" * 513,
    "NUL": "a\x00b",
    "line break": "a\nb",
    "delete": "a\x7f",
    "C1 control": "a\x85",
    "not NFC": "Zoe\u0308",
    "singleton": "\u212b",
    "zero width space": "ad\u200bmin",
    "zero width joiner": "ad\u200dmin",
    "right-to-left override": "\u202enimda",
    "isolate": "\u2066x",
    "soft hyphen": "ad\u00admin",
    "variation selector": "x\ufe0f",
    "tag block": "admin\U000e0041",
    "BOM": "\ufeffadmin",
    "filler": "\u3164",
    "line separator": "a\u2028b",
    "lone surrogate": "a\ud800",
    "leading space": " a",
    "trailing space": "a ",
    "only a space": " ",
    "no-break space": "a\u00a0b",
    "ideographic space": "a\u3000b",
    "braille blank": "\u2800",
    "private use": "\ue000",
    "musical formatting": "a\U0001d173",
}
PAYLOAD = PartsPayload(parts=())


@pytest.mark.parametrize("name", GOOD)
def test_a_visible_name_is_taken(name: str) -> None:
    assert is_name(name)
    assert Message(policy=name, payload=PAYLOAD).policy == name


@pytest.mark.parametrize("name", BAD.values(), ids=BAD.keys())
def test_a_name_that_hides_something_is_refused(name: str) -> None:
    """S9: in every place where a name identifies something."""
    message = {"policy": "x", "payload": PAYLOAD}
    call = {"invocation_id": "i", "option_name": "o", "arguments": {}}
    places: list[tuple[Any, dict[str, Any], str]] = [
        *((Message, message, field) for field in ("id", "policy", "turn_id", "thread_id", "correlation_id", "in_reply_to")),
        (Message, message, "parent_id"),
        *((OptionCallPayload, call, field) for field in ("invocation_id", "option_name")),
        (MediaPart, {"modality": "image", "url": "data:,"}, "id"),
        (ForeignPart, {"value": 1}, "dialect"),
        (Tool, {}, "name"),
    ]
    for cls, fields, field in places:
        with pytest.raises(ValidationError, match="A name is text of 1 to 512 characters") as caught:
            cls(**{**fields, field: name})
        assert caught.value.error_count() == 1
        assert caught.value.errors()[0]["loc"] == (field,)
    with pytest.raises(ValidationError, match="A name is"):
        Message(policy="x", payload=PAYLOAD, to=("ok", name))
    assert not is_name(name)


@pytest.mark.parametrize("value", [None, 7, b"user", ["user"]])
def test_only_text_is_a_name(value: Any) -> None:
    with pytest.raises(ValidationError, match="A name is"):
        Message(policy=value, payload=PAYLOAD)
    assert not is_name(value)


def test_a_name_is_text_in_the_schema() -> None:
    assert Message.model_json_schema()["properties"]["policy"]["type"] == "string"
    assert Name is not None

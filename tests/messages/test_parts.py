"""Parts: text, media, reasoning, data, and what only one dialect can say."""

from typing import Any, get_args

import pytest
from hypothesis import given
from pydantic import ValidationError
from tests import strategies

from antiphon import Citation, DataPart, ForeignPart, MediaPart, Message, PartsPayload, ReasoningPart, TextPart
from antiphon.messages import Modality


@given(strategies.texts)
def test_text_is_kept_exactly(text: str) -> None:
    """OP-013: `kind` is "text", and no character is changed, whatever it is."""
    part = TextPart(text=text)

    assert part.kind == "text"
    assert part.text == text


def test_text_and_media_interleave_in_order() -> None:
    """OP-001"""
    parts = (
        TextPart(text="this"),
        MediaPart(modality="image", url="https://example.com/1.png"),
        TextPart(text="or that"),
        MediaPart(modality="audio", url="https://example.com/2.mp3"),
    )

    message = Message(policy="user", payload=PartsPayload(parts=parts))

    assert message.parts == parts
    assert message.text == "this\nor that"


@pytest.mark.parametrize("modality", ["image", "audio", "video", "document"])
def test_media_has_one_of_four_modalities(modality: Modality) -> None:
    """OP-014, OP-015, OP-053: media is known by modality and URL; nothing else is needed."""
    part = MediaPart(modality=modality, url="https://example.com/x")

    assert part.kind == "media"
    assert part.modality == modality
    assert part.mime is None
    assert get_args(Modality) == ("image", "audio", "video", "document")


@pytest.mark.parametrize("wrong", [{"url": "https://example.com"}, {"modality": "smell", "url": "https://example.com"}])
def test_media_without_a_known_modality_is_refused(wrong: dict[str, Any]) -> None:
    """OP-015"""
    with pytest.raises(ValidationError, match="modality"):
        MediaPart(**wrong)


@pytest.mark.parametrize(
    "url",
    [
        "https://example.com",
        "http://example.com/%7Euser?q=ä b#top",
        "HTTPS://EXAMPLE.COM",
        "https://user:pass@example.com:8443/x",
        "data:image/png;base64,iVBORw0KGgo=",
        "data:,",
        "data:text/plain;charset=utf-8,hello world",
        "gs://bucket/object",
        "s3://bucket/key with space",
        "urn:openai:file-abc123",
    ],
)
def test_a_media_url_is_kept_as_written(url: str) -> None:
    """OP-016: not normalised, not completed with a slash."""
    assert MediaPart(modality="image", url=url).url == url


@pytest.mark.parametrize(
    "url",
    [
        "",
        "example.com/x.png",
        "/etc/passwd",
        "file:///etc/passwd",
        "javascript:alert(1)",
        "ftp://example.com",
        "https://",
        "http:///path",
        "data:image/png",
        "urn:x",
        "https://example.com/\x00",
        "https://example.com/a\nb",
        'https://example.com/"onload=',
        "https://example.com/\ud800",
        "https://example.com/\x7f",
        "https://example.com/\x85",
        "https://example.com/\u202egpj.exe",
        "http\u017f://example.com",
        "data:text/plain,\x9b",
        7,
        b"https://example.com",
    ],
)
def test_something_else_is_no_media_url(url: Any) -> None:
    """OP-016"""
    with pytest.raises(ValidationError, match="url"):
        MediaPart(modality="image", url=url)


def test_media_may_be_labelled_named_and_typed() -> None:
    """OP-017, OP-018, OP-019: mime, prompt_hint and id are optional and free."""
    part = MediaPart(modality="document", url="https://example.com/x", mime="not/really", prompt_hint="the dress", id="m-1")

    assert (part.mime, part.prompt_hint, part.id) == ("not/really", "the dress", "m-1")
    assert part.file_name is None


@pytest.mark.parametrize(
    ("file", "name"), [({"name": "a.pdf"}, "a.pdf"), ({"name": ""}, None), ({"name": 1}, None), ({}, None)]
)
def test_the_name_of_a_file_is_metadata_and_no_hint(file: dict[str, Any], name: str | None) -> None:
    part = MediaPart(modality="document", url="data:,x", metadata={"file": file})

    assert (part.file_name, part.prompt_hint) == (name, None)


def test_further_fields_that_providers_need() -> None:
    owner = {"openai-responses": {"id": "rs_1"}}
    reasoning = ReasoningPart(text="hm", signature="c2ln", encrypted_content="ZW5j", metadata=owner)
    data = DataPart(data={"rows": [1, 2.5, None]})
    foreign = ForeignPart(dialect="gemini", value={"executableCode": {"code": "1+1"}})
    text = TextPart(text="so", citations=(Citation(url="https://example.com", quote="so", start=0, end=2),))

    assert reasoning.metadata["openai-responses"]["id"] == "rs_1"
    assert data.data == {"rows": [1, 2.5, None]}
    assert foreign.value == {"executableCode": {"code": "1+1"}}
    assert text.citations[0].quote == "so"


def test_a_part_of_an_unknown_kind_is_refused() -> None:
    """OP-012: a discriminated union; the discriminator decides, nothing is tried in turn."""
    with pytest.raises(ValidationError, match="does not match any of the expected tags"):
        PartsPayload.model_validate({"parts": [{"kind": "hologram"}]})


@pytest.mark.parametrize("text", ["a\ud800", "\udfff", 7, None, b"bytes"])
def test_invalid_unicode_is_refused(text: Any) -> None:
    with pytest.raises(ValidationError, match="text"):
        TextPart(text=text)

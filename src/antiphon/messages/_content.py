"""The content of a message: parts (text, media, reasoning, data, dialect-specific content), and the three payloads.

A payload is a list of parts, an option call, or the result of an option.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self, TypeAlias

import orjson
from orjson import Fragment
from pydantic import AfterValidator, FailFast, Field, Strict, StrictBool, StringConstraints, model_validator
from pydantic_core import PydanticCustomError
from typing_extensions import override

from antiphon.messages._json_values import Json
from antiphon.messages._model import EMPTY, WORST, JsonField, Model, without_default
from antiphon.messages._names import HIDDEN, Name

# ---------------------------------------------------------------- parts

Text = Annotated[str, Strict(), StringConstraints(max_length=2**31)]
"""Text that is stored unchanged. (Any constraint makes Pydantic refuse lone surrogates; this one is never reached.)"""

Count = Annotated[int, Strict(), Field(ge=0, le=2**53)]
"""A number that every JSON reader reads exactly."""

Metadata: TypeAlias = Mapping[str, Mapping[str, Json]]
"""`{namespace: {key: value}}`: opaque to the core. A dialect stores its own data under its own name."""

MetadataField = Annotated[Metadata, JsonField("namespaces"), Field(json_schema_extra=without_default)]

Modality: TypeAlias = Literal["image", "audio", "video", "document"]

_URL = re.compile(
    r"https?://[^\s/?#]+|data:[^,]*,|gs://[^\s/]+|s3://[^\s/]+|urn:[a-z0-9][a-z0-9-]{0,31}:\S",
    re.IGNORECASE | re.ASCII,
)
_CONTROL = re.compile("[\x7f-\x9f]")


def _check_url(url: str) -> str:
    if not _URL.match(url):
        raise PydanticCustomError(
            "media_url",
            "A media URL is http, https, data, gs, s3 or urn (for a provider's file id), not {start}",
            {"start": repr(url[:40])},
        )
    # JSON text without an escape has no control character, quote or backslash: the quickest check of 32 MiB.
    hidden = _CONTROL if is_data_url(url) else HIDDEN
    if len(orjson.dumps(url)) != len(url.encode()) + 2 or (not url.isascii() and hidden.search(url)) or "\x7f" in url:
        raise PydanticCustomError(
            "media_url", "A media URL must not contain control or invisible characters, quotes or backslashes", {}
        )
    return url


DATA_URLS = re.compile(rb'"data:[^"\\]*"', re.IGNORECASE)
"""The `data:` URLs in a JSON text, with their quotes."""


def is_data_url(url: str) -> bool:
    """Whether a URL contains its data."""
    return url[:5].lower() == "data:"


MediaUrl = Annotated[Text, AfterValidator(_check_url)]


class Citation(Model, frozen=True):
    """Where a piece of text comes from."""

    url: Text | None = None
    title: Text | None = None
    source: Text | None = None
    """The source, if it has no URL: a document's id, a file's name."""
    quote: Text | None = None
    """The quoted text of the source."""
    start: Count | None = None
    """The first character of the text that the citation supports."""
    end: Count | None = None
    """The character after the last one."""
    metadata: MetadataField = EMPTY


class TextPart(Model, frozen=True):
    """Text."""

    kind: Literal["text"] = "text"
    text: Text
    citations: Annotated[tuple[Citation, ...], FailFast()] = ()
    metadata: MetadataField = EMPTY

    @override
    def __house__(self) -> dict[str, Any]:
        kind, text, citations, metadata = self.__dict__.values()
        return {"kind": kind, "text": text} if not citations and metadata is EMPTY else super().__house__()

    @override
    def __weight__(self) -> int:
        _, text, citations, metadata = self.__dict__.values()
        return 64 + WORST * len(text) if not citations and metadata is EMPTY else super().__weight__()


class MediaPart(Model, frozen=True):
    """An image, audio, a video or a document, by URL."""

    kind: Literal["media"] = "media"
    modality: Modality
    url: MediaUrl
    """Stored unchanged: http, https, data, gs, s3, or a urn for a file that a provider holds."""
    mime: Text | None = None
    """The media type, if known; the core does not use it."""
    prompt_hint: Text | None = None
    """A label for a prompt; the core does not use it. It is not a file name."""
    id: Name | None = None
    """Identifies the medium across messages; the builder derives it from the content."""
    metadata: MetadataField = EMPTY

    @property
    def file_name(self) -> str | None:
        """The name of its file, from `metadata`: `{"file": {"name": …}}`."""
        name = self.metadata.get("file", {}).get("name")
        return name if isinstance(name, str) and name else None


class ReasoningPart(Model, frozen=True):
    """A model's reasoning, with the signature that its provider requires."""

    kind: Literal["reasoning"] = "reasoning"
    text: Text = ""
    signature: Text | None = None
    encrypted_content: Text | None = None
    metadata: MetadataField = EMPTY


class DataPart(Model, frozen=True):
    """A JSON value."""

    kind: Literal["data"] = "data"
    data: Annotated[Json, JsonField("any")]
    metadata: MetadataField = EMPTY


class ForeignPart(Model, frozen=True):
    """Content that a dialect can read but the core cannot express.

    It is stored complete, so writing it back to the same dialect loses nothing.
    """

    kind: Literal["foreign"] = "foreign"
    dialect: Name
    value: Annotated[Json, JsonField("any")]
    metadata: MetadataField = EMPTY


Part: TypeAlias = Annotated[TextPart | MediaPart | ReasoningPart | DataPart | ForeignPart, Field(discriminator="kind")]


# ---------------------------------------------------------------- payloads

Kind: TypeAlias = Literal["parts", "option_call", "option_result"]

_NAMES = 8192
"""The most bytes that two names and their keys take."""


class PartsPayload(Model, frozen=True):
    """Content: text and media in any order."""

    kind: Literal["parts"] = "parts"
    parts: Annotated[tuple[Part, ...], FailFast()]

    @override
    def __house__(self) -> dict[str, Any]:
        kind, parts = self.__dict__.values()
        return {"kind": kind, "parts": [part.__house__() for part in parts]}

    @override
    def __weight__(self) -> int:
        weight = 64
        for part in self.__dict__["parts"]:
            weight += part.__weight__()
        return weight


class OptionCallPayload(Model, frozen=True):
    """A policy's choice: this option, with these arguments."""

    kind: Literal["option_call"] = "option_call"
    invocation_id: Name
    """Pairs the call with its result."""
    option_name: Name
    arguments: Annotated[Mapping[str, Json], JsonField("object")]
    arguments_text: Text | None = None
    """The original text of the arguments, if it is not plain JSON of `arguments`."""

    @override
    def __house__(self) -> dict[str, Any]:
        kind, invocation, option, arguments, text = self.__dict__.values()
        if type(arguments) is bytes:
            arguments = Fragment(arguments)
        form = {"kind": kind, "invocation_id": invocation, "option_name": option, "arguments": arguments}
        if text is not None:
            form["arguments_text"] = text
        return form

    @override
    def __weight__(self) -> int:
        _, _, _, arguments, text = self.__dict__.values()
        return _NAMES + len(arguments) if type(arguments) is bytes and text is None else super().__weight__()


class OptionResultPayload(Model, frozen=True):
    """The outcome of an option call: a result, or an error."""

    kind: Literal["option_result"] = "option_result"
    invocation_id: Name
    option_name: Name
    result: Annotated[Json, JsonField("any")] = None
    """The return value of the option; for an error, the details."""
    parts: Annotated[tuple[Part, ...], FailFast()] = ()
    """Other content of the result: an image, a document."""
    is_error: StrictBool = False
    error_type: Text | None = None
    error_message: Text | None = None
    retryable: StrictBool | None = None
    """Whether calling again may help; None for a success."""

    @override
    def __house__(self) -> dict[str, Any]:
        kind, invocation, option, result, parts, is_error, _, _, _ = self.__dict__.values()
        if parts or is_error or result is None:
            return super().__house__()
        if type(result) is bytes:
            result = Fragment(result)
        return {"kind": kind, "invocation_id": invocation, "option_name": option, "result": result}

    @override
    def __weight__(self) -> int:
        fields = self.__dict__
        result = fields["result"]
        is_plain = type(result) is bytes and not fields["parts"] and not fields["is_error"]
        return _NAMES + len(result) if is_plain else super().__weight__()

    @model_validator(mode="after")
    def _error_fields_go_with_is_error(self) -> Self:
        if self.is_error:
            if not self.error_type or self.error_message is None:
                raise PydanticCustomError("error_result", "An error result needs error_type and error_message", {})
        elif self.error_type is not None or self.error_message is not None or self.retryable is not None:
            raise PydanticCustomError(
                "error_result", "error_type, error_message and retryable are for errors: set is_error=True too", {}
            )
        return self


Payload: TypeAlias = Annotated[PartsPayload | OptionCallPayload | OptionResultPayload, Field(discriminator="kind")]

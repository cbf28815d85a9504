"""Payloads: the three things a message can be. Something said, an option called, an option's result."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self, TypeAlias

from orjson import Fragment
from pydantic import FailFast, Field, StrictBool, model_validator
from pydantic_core import PydanticCustomError
from typing_extensions import override

from antiphon.messages._json import Json
from antiphon.messages._model import JsonField, Model
from antiphon.messages._names import Name
from antiphon.messages._parts import Part, Text

__all__ = ["Kind", "OptionCallPayload", "OptionResultPayload", "PartsPayload", "Payload"]

Kind: TypeAlias = Literal["parts", "option_call", "option_result"]

_NAMES = 8192
"""Bytes of two names at worst, with the keys around them."""


class PartsPayload(Model, frozen=True):
    """Something said or shown: text and media in any order."""

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
    """The arguments as they were written, where that is not plainly the JSON of `arguments`."""

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
    """What came of an option call: a result, or an error."""

    kind: Literal["option_result"] = "option_result"
    invocation_id: Name
    option_name: Name
    result: Annotated[Json, JsonField("any")] = None
    """What the option returned; of an error, the details."""
    parts: Annotated[tuple[Part, ...], FailFast()] = ()
    """What the option showed besides: an image, a document."""
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

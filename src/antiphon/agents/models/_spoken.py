"""A scripted answer as a stream: word by word, as a model would send it."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from datetime import datetime

from pydantic_ai.messages import ModelResponse, ModelResponseStreamEvent, TextPart, ToolCallPart
from pydantic_ai.models import StreamedResponse
from typing_extensions import override

__all__ = ["SpokenResponse"]

_WORD = re.compile(r"\S+\s*|\s+")
_STRETCH = re.compile(r"(?s).{1,12}")
"""What the arguments of a call come in: JSON need not have spaces."""


@dataclass
class SpokenResponse(StreamedResponse):
    """An answer that is known as a whole, given out in pieces."""

    answer: ModelResponse

    def __post_init__(self) -> None:
        self._usage += self.answer.usage

    @override
    async def _get_event_iterator(self) -> AsyncGenerator[ModelResponseStreamEvent]:
        for place, part in enumerate(self.answer.parts):
            if isinstance(part, TextPart):
                for piece in _WORD.findall(part.content):
                    for event in self._parts_manager.handle_text_delta(vendor_part_id=place, content=piece):
                        yield event
            elif isinstance(part, ToolCallPart):
                name: str | None = part.tool_name
                for piece in _STRETCH.findall(part.args_as_json_str()):
                    for event in self._parts_manager.handle_tool_call_delta_events(
                        vendor_part_id=place, tool_name=name, args=piece, tool_call_id=part.tool_call_id
                    ):
                        yield event
                    name = None  # the pieces of a name would be added up

    @override
    async def close_stream(self) -> None:
        """Nothing is open."""

    @property
    @override
    def model_name(self) -> str:
        return self.answer.model_name or ""

    @property
    @override
    def provider_name(self) -> str | None:
        return self.answer.provider_name

    @property
    @override
    def provider_url(self) -> None:
        return None

    @property
    @override
    def timestamp(self) -> datetime:
        return self.answer.timestamp

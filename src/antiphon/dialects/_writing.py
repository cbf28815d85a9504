"""One conversation being written as a body: whose words are whose, what was noted, what names and labels are given."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from antiphon.checks import is_left_out
from antiphon.checks._speech import usual_role
from antiphon.dialects._aliases import Aliases
from antiphon.dialects._units import notes_of
from antiphon.messages import ForeignPart, MediaPart, Message, OptionCallPayload, Part, PartsPayload, TextPart, Tool, thaw
from antiphon.messages._json import plain
from antiphon.messages._model import EMPTY, plain_of

__all__ = ["BodyWriting"]


@dataclass(slots=True)
class BodyWriting:
    """One conversation being written."""

    dialect: str
    as_policy: str | None
    options: Mapping[str, Any]
    aliases: Aliases
    media: int = 0
    """How many media have a label so far."""
    is_regular: bool = False
    """Whether all is written in the order it was said, and no call is open."""
    previous: Sequence[Message] | None = None
    """The messages of the unit that was written last."""
    memory: dict[object, Any] = field(default_factory=dict[object, Any])
    """What the dialect remembers of what it has written so far."""
    is_in_native: bool = False
    """Whether the unit that is being written was read from this format."""

    def is_native(self, message: Message) -> bool:
        """Whether a message was read from this format."""
        return message.__dict__["metadata"] is not EMPTY and self.dialect in plain_of(message, "metadata")

    def is_from_elsewhere(self, message: Message) -> bool:
        """Whether a message is written by the rules of the format: it was not read from it, and no repair left it out."""
        return not self.is_native(message) and not is_left_out(message)

    def notes(self, thing: Message | Part | Tool) -> Mapping[str, Any]:
        """Return what this dialect has noted on a message or part: plain JSON, not to be changed."""
        return notes_of(thing, self.dialect)

    def setting(self, part: Part, name: str, *also: str) -> Any:
        """Return a setting that this dialect, or one that has the same, knows of a part."""
        if part.__dict__["metadata"] is EMPTY:
            return None
        known = plain(part.metadata)
        return next((known[each][name] for each in (self.dialect, *also) if name in known.get(each, {})), None)

    def file_name(self, part: MediaPart) -> str | None:
        """Return the name of a file. What was read from this format before a name had its own place has it as the hint."""
        return part.file_name or (part.prompt_hint if self.is_in_native else None)

    def own(self, part: ForeignPart) -> Any:
        """Return what a part holds that only this dialect understands."""
        return thaw(part.value)

    def labelled(self, parts: Iterable[Part]) -> Iterable[Part]:
        """Return parts, each medium with a label before it if one is asked for; they are counted through the conversation."""
        return self._with_labels(parts) if self.options.get("media_labels") else parts

    def _with_labels(self, parts: Iterable[Part]) -> Iterable[Part]:
        for part in parts:
            if isinstance(part, MediaPart):
                self.media += 1
                hint = f" ({part.prompt_hint})" if part.prompt_hint else ""
                yield TextPart(text=f"Media {self.media}{hint}:")
            yield part

    def role(self, message: Message) -> str:
        """Return whose words these are: the viewpoint decides, else the hint, else the name."""
        fields = message.__dict__
        if type(fields["payload"]) is not PartsPayload:
            return "assistant" if type(fields["payload"]) is OptionCallPayload else "tool"
        hint, policy = fields["role_hint_for_llm"], fields["policy"]
        if self.as_policy is not None and hint != "system" and policy != "system":
            return "assistant" if policy == self.as_policy else "user"
        return hint if hint == "user" or hint == "assistant" else usual_role(message)  # noqa: PLR1714 (most have one of these)

    def side(self, message: Message) -> str:
        """Return in whose unit a message stands: a result in the user's."""
        role = self.role(message)
        return "user" if role == "tool" else role

    def is_other_than_it_was(self, message: Message) -> bool:
        """Whether a message is written from another viewpoint, or with labels: what was noted of its form does not fit."""
        if self.as_policy is not None and message.payload.kind == "parts" and self.role(message) != usual_role(message):
            return True
        return bool(self.options.get("media_labels")) and any(isinstance(part, MediaPart) for part in message.parts)

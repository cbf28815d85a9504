"""A dialect of another package: it looks like MARSYS, and loses or refuses what the data asks it to."""

from typing import Any

from antiphon.dialects import Encoded, Loss, get
from antiphon.dialects import Losses as LossesChoice
from antiphon.errors import EncodeError
from antiphon.messages import Conversation

LOSSES = (
    Loss("m-1", "the tone of [bold]voice[/bold]", "it is only written"),
    Loss(None, "the \x1b[31mroom\u202e", "nobody says where they are :smile:"),
)


class TwinDialect:
    name = "twin"
    summary = "a [red]twin[/red] of MARSYS\x07"

    def decode(self, data: Any) -> Conversation:
        return get("marsys").decode(data)

    def encode(
        self, conversation: Conversation, *, as_policy: str | None = None, losses: LossesChoice = "report", **options: Any
    ) -> Encoded:
        if any("unspeakable" in message.text for message in conversation):
            raise EncodeError("it cannot be said at all", dialect=self.name, where="message m-1")
        return Encoded({"as": as_policy, "texts": [message.text for message in conversation]}, LOSSES)

    def recognise(self, data: Any) -> str | None:
        return "it looks familiar" if get("marsys").recognise(data) else None


DIALECT = TwinDialect()

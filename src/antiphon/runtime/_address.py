"""Address: the name of an actor, as text of the form `kind/key`."""

from __future__ import annotations

import re

from antiphon.messages import is_name
from antiphon.messages.keys import key_of, kind_of

_KIND = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]*", re.ASCII)

_PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]{0,200}(/[!-~]{1,200})?", re.ASCII)
"""The form of most addresses; others are checked in full."""

SYSTEM = "system"
"""The kind of the runtime's own addresses, and the prefix of its threads."""


class Address(str):
    """`kind/key`, or a kind alone if there is only one of it. It is a `str`: it can be a policy, a receiver or a key."""

    __slots__ = ()

    def __new__(cls, kind: str, key: str = "") -> Address:
        """Make an address.

        Raises:
            ValueError: the kind has other characters than ASCII letters, digits and `_.:-`, or the key is no name.
        """
        address = super().__new__(cls, f"{kind}/{key}" if key else kind)
        if _PLAIN.fullmatch(address):
            return address
        if not _KIND.fullmatch(kind) or not is_name(str(address)):
            raise ValueError(f"an address is a kind of ASCII letters, digits and _.:-, and a key that is a name: {address!r}")
        return address

    @classmethod
    def parse(cls, text: str) -> Address:
        """Return the address that a text is.

        Raises:
            ValueError: it is malformed.
        """
        if text.endswith("/"):
            raise ValueError(f"an address has a key after its slash: {text!r}")
        if _PLAIN.fullmatch(text):
            return super().__new__(cls, text)
        kind, _, key = text.partition("/")
        return cls(kind, key)

    @property
    def kind(self) -> str:
        """What lives there: actors of a kind have the same factory."""
        return kind_of(self)

    @property
    def key(self) -> str:
        """Which one of its kind."""
        return key_of(self)


def system_thread(address: str) -> str:
    """Return the system thread of an actor: its failures, restarts and supervision, outside of conversations."""
    return f"{SYSTEM}/{address}"

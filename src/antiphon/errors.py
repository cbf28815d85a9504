"""Every error that antiphon raises on purpose, as one tree.

```
AntiphonError                     .retryable: may the same thing succeed later?
└── DialectError                  .dialect .where
    ├── DecodeError               their bytes are wrong
    │   └── NewerVersionError     written by a later antiphon: upgrade, then read
    └── EncodeError               our message cannot be said in this dialect
```

Branches are the layers that speak; leaves are what the caller can do about it. Programming mistakes stay `ValueError`,
`TypeError` and `RuntimeError`, and a value refused by a constructor is Pydantic's `ValidationError`: neither is in the tree.
"""

from __future__ import annotations

from typing import ClassVar

__all__ = ["AntiphonError", "DecodeError", "DialectError", "EncodeError", "NewerVersionError"]


class AntiphonError(Exception):
    """The base of the tree: one `except` for everything antiphon refuses."""

    retryable: ClassVar[bool] = False
    """Whether the same thing, unchanged, may succeed later."""


class DialectError(AntiphonError):
    """Something could not be said or understood in a message format."""

    def __init__(self, reason: str, *, dialect: str, where: str = "") -> None:
        super().__init__(reason, dialect, where)
        self.reason = reason
        self.dialect = dialect
        self.where = where
        """Where in the data: a path such as `payload.arguments.limit`, or a line; empty for the whole."""

    def __str__(self) -> str:
        place = f" at {self.where}" if self.where else ""
        return f"{self.dialect}{place}: {self.reason}"

    def __reduce__(self) -> tuple[object, ...]:
        return _revive, (type(self), self.reason, self.dialect, self.where)


class DecodeError(DialectError):
    """The data that came in is not what its format says; nothing of it was kept."""


class NewerVersionError(DecodeError):
    """The data was written by a later version of antiphon than this one can read."""


class EncodeError(DialectError):
    """The conversation says something that the format cannot, and the caller did not want to lose it."""


def _revive(cls: type[DialectError], reason: str, dialect: str, where: str) -> DialectError:
    return cls(reason, dialect=dialect, where=where)

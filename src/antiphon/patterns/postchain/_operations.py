"""Context operations: what phases do to what a thread has in mind, as frozen values; and the context, which is their fold.

They stand in the output of the phase that did them, so they are written down with it, once. An operation says what is wanted:
what must not be is declined. The words of a user are never pruned or changed unless the operation says that they consented.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

__all__ = [
    "Add",
    "ChainContext",
    "ContextOperation",
    "Item",
    "ItemSource",
    "Link",
    "Prioritize",
    "Prune",
    "Tag",
    "Transform",
    "operations_from",
    "operations_to",
]

ItemSource: TypeAlias = Literal["user", "agent", "knowledge", "memory", "observation", "tool"]


class _Value(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Item(_Value):
    """Something that a thread has in mind."""

    id: str
    """What it is cited by: the id of a message in the ledger, of a call of a tool, or the phase that said it."""
    source: ItemSource
    title: str = ""
    """Where it is from, for people: a document, a thread."""
    text: str
    tags: tuple[str, ...] = ()
    priority: float = 0.0
    """How much it is about what is asked, from 0 to 1."""


class Add(_Value):
    """Have something in mind from now on."""

    operation: Literal["ADD"] = "ADD"
    item: Item


class Tag(_Value):
    """Say something about an item."""

    operation: Literal["TAG"] = "TAG"
    target: str
    tags: tuple[str, ...] = Field(min_length=1)


class Prune(_Value):
    """Have it in mind no longer; it stays in the ledger."""

    operation: Literal["PRUNE"] = "PRUNE"
    target: str
    reason: str
    consent: bool = False
    """That the user whose words these are has agreed."""


class Transform(_Value):
    """Have it in mind in other words."""

    operation: Literal["TRANSFORM"] = "TRANSFORM"
    target: str
    transformation: Literal["summarize"] = "summarize"
    text: str
    consent: bool = False


class Link(_Value):
    """Say that two things have to do with each other."""

    operation: Literal["LINK"] = "LINK"
    target: str
    linked_to: str
    relationship: str
    strength: float = Field(ge=0, le=1)


class Prioritize(_Value):
    """Say how much an item is about what is asked."""

    operation: Literal["PRIORITIZE"] = "PRIORITIZE"
    target: str
    priority: float = Field(ge=0, le=1)
    reason: str = ""


ContextOperation: TypeAlias = Annotated[Add | Tag | Prune | Transform | Link | Prioritize, Field(discriminator="operation")]

_OPERATIONS: TypeAdapter[tuple[ContextOperation, ...]] = TypeAdapter(tuple[ContextOperation, ...])


def operations_to(operations: Iterable[ContextOperation]) -> list[dict[str, Any]]:
    """Return operations as plain JSON."""
    return [operation.model_dump(mode="json", exclude_defaults=False) for operation in operations]


def operations_from(data: Any) -> tuple[ContextOperation, ...]:
    """Read operations.

    Raises:
        ValidationError: they are none.
    """
    return _OPERATIONS.validate_python(data)


@dataclass(frozen=True, slots=True)
class ChainContext:
    """What a thread has in mind, in the order in which it came."""

    items: Mapping[str, Item] = field(default_factory=dict[str, Item])
    links: tuple[Link, ...] = ()
    declined: tuple[ContextOperation, ...] = ()
    """What was not done."""

    def __iter__(self) -> Iterator[Item]:
        return iter(self.items.values())

    @property
    def size(self) -> int:
        """How many characters it takes."""
        return sum(len(item.text) for item in self)

    def after(self, operations: Iterable[ContextOperation]) -> ChainContext:
        """Return the context after some operations."""
        context = self
        for operation in operations:
            context = context._after(operation)
        return context

    def _after(self, operation: ContextOperation) -> ChainContext:
        if isinstance(operation, Add):
            return self._with(operation.item)
        item = self.items.get(operation.target)
        if item is None or _is_protected(item, operation):
            return ChainContext(self.items, self.links, (*self.declined, operation))
        match operation:
            case Tag():
                return self._with(item.model_copy(update={"tags": tuple(dict.fromkeys((*item.tags, *operation.tags)))}))
            case Prune():
                kept = {name: each for name, each in self.items.items() if name != item.id}
                return ChainContext(kept, self.links, self.declined)
            case Transform():
                tags = tuple(dict.fromkeys((*item.tags, operation.transformation)))
                return self._with(item.model_copy(update={"text": operation.text, "tags": tags}))
            case Prioritize():
                return self._with(item.model_copy(update={"priority": operation.priority}))
            case Link():
                return ChainContext(self.items, (*self.links, operation), self.declined)

    def _with(self, item: Item) -> ChainContext:
        return ChainContext({**self.items, item.id: item}, self.links, self.declined)


def _is_protected(item: Item, operation: ContextOperation) -> bool:
    return item.source == "user" and isinstance(operation, Prune | Transform) and not operation.consent

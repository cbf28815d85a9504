"""What a rule is: a code for ever, what to look for, how to mend it, and what providers are known to answer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from antiphon.checks._answers import ANSWERS
from antiphon.checks._edits import Edits
from antiphon.checks._finding import Severity
from antiphon.checks._targets import Target
from antiphon.checks._view import View

__all__ = ["Rule", "Trouble"]


@dataclass(frozen=True, slots=True)
class Trouble:
    """One place where a rule is broken."""

    position: int | None
    """The message; None for the conversation as a whole."""
    problem: str
    """What is wrong, in a phrase that names the thing."""
    severity: Severity | None = None
    """How bad it is here; None: as the rule says."""
    about: tuple[int, ...] = ()
    """Other positions, or places of parts, that the mending needs."""

    @property
    def place(self) -> int:
        """The position, for the mending of what is about a message.

        Raises:
            RuntimeError: it is about the conversation as a whole.
        """
        if self.position is None:
            raise RuntimeError("this trouble is not about a message")
        return self.position


@dataclass(frozen=True, slots=True)
class Rule:
    """Something that a target refuses."""

    code: str
    title: str
    """The trouble, in a phrase."""
    why: str
    """What is behind it, for the page of the rule."""
    hint: str
    """How to mend it: a sentence."""
    find: Callable[[View], Iterable[Trouble]]
    mend: Callable[[View, Trouble, Edits], str] | None = None
    """Mend one trouble and say what was done; None for what only a person can decide, which is never an error."""
    severity: Severity = "error"
    """As bad as it gets."""
    targets: tuple[str, ...] = ()
    """Who refuses it; none: everybody, so that it is looked for without a target, too."""
    is_eased: bool = False
    """Whether it is only a warning in what the dialect writes itself, and not as it was."""

    @property
    def answers(self) -> Mapping[str, str]:
        """What targets are known to say, in their own words."""
        return ANSWERS.get(self.code, {})

    def applies(self, target: Target | None) -> bool:
        """Whether the rule is to be looked for."""
        return not self.targets or (target is not None and target.name in self.targets)

"""The prompts of the phases, which are files beside this one; each has a version, which threads record."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from antiphon.protocol import PHASES, Phase

__all__ = ["Prompt", "prompt_of"]

_FORM = re.compile(r"version: (\d+)\n\n(.+)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Prompt:
    """What a phase's agent is told before anything else."""

    phase: Phase
    version: int
    text: str

    @property
    def name(self) -> str:
        """What a thread records, such as `action@1`."""
        return f"{self.phase}@{self.version}"


@cache
def prompt_of(phase: Phase) -> Prompt:
    """Return the prompt of a phase."""
    assert phase in PHASES  # noqa: S101 (it names a file)
    found = _FORM.fullmatch((Path(__file__).parent / "prompts" / f"{phase}.md").read_text())
    if found is None:
        raise ValueError(f"the prompt of {phase} does not begin with `version: N` and an empty line")
    return Prompt(phase, int(found[1]), found[2].strip())

"""Phases of the program: a class with a name and a prompt, as a phase among the six phases of a chain.

A thread records the order of its phases when it is created, unless they are the six. The agent of such a phase is asked like
those of the six: with the question, the sources by number and the answer of the previous phase; and only once, even after a
crash. The protocol of Choir knows six phases, so such a chain can be used only from Python.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Final, TypeAlias, cast

from pydantic import TypeAdapter
from typing_extensions import override

from antiphon import protocol
from antiphon.agents.config import known_names
from antiphon.errors import ChainConfigError
from antiphon.messages import Json, thaw
from antiphon.patterns.postchain._chain import Chain
from antiphon.patterns.postchain._config import MENTIONED, PROMPT, prompt_digest, prompt_text
from antiphon.patterns.postchain._context import Add, ContextOperation, Item, PhaseWork
from antiphon.patterns.postchain._outputs import TYPED, text_of
from antiphon.patterns.postchain._phase import PhaseActor
from antiphon.patterns.postchain._protocol import OwnPhaseProcessed, ProcessOwnPhase
from antiphon.protocol import PHASES
from antiphon.runtime import Context, handles


@dataclass(frozen=True, slots=True)
class Contribution:
    """The contribution of a phase of the program to a turn."""

    response: str
    """Its text, which the next phase gets."""
    confidence: float | None = None
    operations: Sequence[ContextOperation] = ()
    """Changes to the context: sources that are added, scored or pruned."""
    data: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """More fields of its output, as plain JSON."""


class OwnPhase:
    """A phase of the program. Subclass it, and pass the class in `PostChain(phases=[…])`, at its position."""

    name: ClassVar[str]
    prompt: ClassVar[str | Path]
    """The instructions of its agent, or a file with them."""
    output_type: ClassVar[Any] = str
    """The output type of its agent: text, or any single output type of Pydantic AI."""
    tools: ClassVar[tuple[str, ...]] = ()
    """The names of the tools that its agent may use."""

    def conclude(self, work: PhaseWork, output: Any) -> Contribution:
        """Return the contribution of the phase, from the output of its agent.

        It must be pure: after a crash, it is called again.
        """
        return Contribution(text_of(output))


PhaseLike: TypeAlias = protocol.Phase | type[OwnPhase]
"""A phase of a chain: the name of one of the six, or a class of the program."""

_NAME: Final = re.compile(r"[a-z][a-z0-9_-]{0,40}")
_TAKEN: Final = frozenset({*PHASES, "thread", "agent", "client", "supervisor", "delegate", "door"})


def ordered_phases(given: Iterable[PhaseLike]) -> tuple[tuple[str, ...], dict[str, OwnPhase]]:
    """Return the names of a chain's phases in order, and the phases of the program by name.

    Raises:
        ChainConfigError: there is no such phase, a name is invalid or repeated, or the last phase is not `yield`.
    """
    order, own = list[str](), dict[str, OwnPhase]()
    for each in given:
        if isinstance(each, str):
            if each not in PHASES:
                raise ChainConfigError(f"phases: there is no phase {each!r}{known_names(each, PHASES, 'there are', 'none')}")
            name = cast("str", each)
        else:
            name = getattr(each, "name", "")
            if not _NAME.fullmatch(name) or name in _TAKEN:
                reason = "a name has lower-case letters, digits, `_` and `-`, and is none of the chain's own"
                raise ChainConfigError(f"phases: {each.__name__}.name is {name!r}: {reason}")
            own[name] = each()
            prompt_text(name, own[name].prompt)
        if name in order:
            raise ChainConfigError(f"phases: {name!r} is there twice")
        order.append(name)
    if not order or order[-1] != PHASES[-1]:
        raise ChainConfigError(f"phases: the last one is {PHASES[-1]!r}, which answers")
    return tuple(order), own


class OwnPhaseActor(PhaseActor):
    """A phase of the program, for all threads."""

    def __init__(self, chain: Chain, own: OwnPhase) -> None:
        super().__init__(chain)
        self._own = own
        setattr(self, "phase", own.name)  # noqa: B010 (the type of the six names only those)

    @handles
    async def process_own(self, request: ProcessOwnPhase, context: Context) -> OwnPhaseProcessed:
        """Run the phase."""
        output, taken = await self.run(request, context)
        return OwnPhaseProcessed(thread_id=request.thread_id, phase=request.phase, output=output, processing_time=taken)

    @override
    async def agent_of_phase(self, work: PhaseWork, context: Context) -> dict[str, Any]:
        """Return the configuration of the agent, which the thread records as an effect: the protocol has no message for it."""

        async def now(key: str) -> Json:
            config = self.chain.cast.own_config(self._own.name)
            said = {**config.model_dump(mode="json", exclude_unset=True), "outputs": TYPED}
            text = str(said.pop("system_prompt"))
            name = f"{self._own.name}@{prompt_digest(text)}"
            self.chain.cast.prompts[name] = text
            return {**said, PROMPT: name}  # the talk with the model has the text

        agent = cast("dict[str, Any]", thaw(await context.effect("prepare", {}, now, effects="none")))
        if PROMPT in agent and "text" in agent:  # an earlier version has recorded it here
            self.chain.cast.prompts[agent[PROMPT]] = agent.pop("text")
        return agent

    @override
    async def conclude(
        self, work: PhaseWork, said: protocol.AgentResult, context: Context
    ) -> tuple[protocol.PhaseOutput, list[ContextOperation]]:
        output: Any = said.response
        if "data" in said.model_extra:
            output = TypeAdapter[Any](self._own.output_type).validate_python(thaw(said.model_extra["data"]))
        added = self._own.conclude(work, output)
        item = Item(id=self._own.name, source="agent", title=self._own.name, text=added.response[:MENTIONED])
        more: dict[str, Any] = {**added.data, "by": "agent"}
        return self.output(added.response, added.confidence, **more), [Add(item=item), *added.operations]

"""Plans: the structured output of models that plan or finish, and scripts of tool calls.

A field says whether a task is done; it is never parsed from text. The schema lists the names that a model may choose. If a
model names another agent nevertheless, that step fails with an error.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Annotated, Any, Final, Literal, TypeAlias, cast

from pydantic import BaseModel, Field, JsonValue, create_model, model_validator
from typing_extensions import override

from antiphon.dialects.agent_framework import Phase, Plan, ScriptPlanContent, ScriptStep, StrategicPlanContent
from antiphon.messages import thaw
from antiphon.patterns.cast import Cast

# ---------------------------------------------------------------- drafts


DISPLAY_MESSAGE: Final = "display_message"
"""The default operation: the client displays the result."""

Somebody: TypeAlias = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_.-]{0,63}$")]
"""A valid name of an agent, whether or not the agent exists."""


# The docstrings of the classes below are descriptions in the schemas that models receive. Each request in a ledger has a hash
# of its schemas, so a changed docstring stops the open runs with HistoryMismatchError.


class PhaseDraft(BaseModel):
    """One phase: what one of the team is to reach."""

    name: str = Field(min_length=1)
    worker: Somebody
    goals: str = ""
    notes: str = ""


class PlanDraft(BaseModel):
    """How a request is met, in phases."""

    refined_intent: str = ""
    """A summary of the request."""
    phases: list[PhaseDraft] = Field(min_length=1)
    parallel: bool = False
    """Whether the phases run in parallel, because none needs the result of another."""
    rationale: str = ""

    @model_validator(mode="before")
    @classmethod
    def _take_every_form(cls, value: Any) -> Any:
        """Unwrap the plan, and turn workers that get the whole task into phases."""
        if not isinstance(value, dict):
            return value
        fields = dict(cast("dict[str, Any]", value))
        if isinstance(plan := fields.get("plan"), dict):
            fields |= cast("dict[str, Any]", plan)
        fields.setdefault("phases", fields.get("steps") or None)
        if fields["phases"] is None:
            workers: list[Any] = fields.get("parallel_workers") or [fields.get("primary_worker")]
            fields["phases"] = [{"name": name, "worker": name} for name in workers if name]
            fields["parallel"] = len(workers) > 1
        return fields

    def content(self) -> StrategicPlanContent:
        """Return it as the content of a `strategic_plan`."""
        dumps = [draft.model_dump() for draft in self.phases]
        phases = tuple(Phase(**{name: value for name, value in dump.items() if value}) for dump in dumps)
        plan: dict[str, Any] = {"primary_worker": phases[0].worker, "rationale": self.rationale or None}
        if self.parallel:
            plan["parallel"] = True
        return StrategicPlanContent(refined_intent=self.refined_intent or None, plan=Plan(phases=phases, **plan))


class StepDraft(BaseModel):
    """One step of a phase: what one worker is to do."""

    name: str
    worker: Somebody
    task: str


class StepsDraft(BaseModel):
    """How a phase is done, in steps."""

    steps: list[StepDraft] = Field(min_length=1)
    parallel: bool = False
    """Whether the steps run in parallel, because none needs the result of another."""


class ScriptStepDraft(BaseModel):
    """One tool call of a script."""

    name: str
    worker: str
    tool_name: str
    args: dict[str, JsonValue] = {}
    notes: str | None = None
    execution_mode: Literal["direct", "guided"] = "direct"


class ScriptDraft(BaseModel):
    """How a phase is done, as tool calls one after the other."""

    goal: str = ""
    steps: list[ScriptStepDraft] = Field(min_length=1)


class Finished(BaseModel):
    """What a worker answers when it is through with its task."""

    status: Literal["completed", "failed"] = "completed"
    summary: str
    """The result, or why there is none, for people."""
    data: dict[str, JsonValue] = {}
    """The result, for programs."""

    @property
    def chosen(self) -> str | None:
        """The operation that the worker has chosen; None: there is no choice, or it has not chosen."""
        return None


class _Choosing(Finished):
    """What a worker answers that may choose what a client does with the result."""

    operation: str | None = None

    @property
    @override
    def chosen(self) -> str | None:
        return self.operation


def finished_of(operations: Sequence[str]) -> type[Finished]:
    """Return the output type of a worker, with a choice of these operations if there are several."""
    if tuple(operations) == (DISPLAY_MESSAGE,):
        return Finished
    choice: Any = Literal[tuple(operations)]
    field: Any = (choice | None, None)
    return create_model("Finished", __base__=_Choosing, operation=field)


def plan_of(names: Sequence[str], most: int) -> type[PlanDraft]:
    """Return the output type of a plan for these members."""
    phase = create_model("PhaseDraft", __base__=PhaseDraft, worker=(_one_of(names), ...))
    return create_model("PlanDraft", __base__=PlanDraft, phases=_listed(phase, most))


def steps_of(names: Sequence[str], most: int) -> type[StepsDraft]:
    """Return the output type of steps for these workers."""
    step = create_model("StepDraft", __base__=StepDraft, worker=(_one_of(names), ...))
    return create_model("StepsDraft", __base__=StepsDraft, steps=_listed(step, most))


def _one_of(names: Sequence[str]) -> Any:
    return Annotated[Somebody, Field(json_schema_extra={"enum": list(names)})]


def _listed(item: type[BaseModel], most: int) -> Any:
    """Return a list of these as a field."""
    return list[item], Field(min_length=1, max_length=most)  # type: ignore[valid-type]


# ---------------------------------------------------------------- scripts


@dataclass(frozen=True, slots=True)
class Segment:
    """Consecutive steps of the same worker in the same mode."""

    worker: str
    is_direct: bool
    steps: tuple[ScriptStep, ...]

    @property
    def task(self) -> str:
        """The task of the worker, as text."""
        return "; ".join(step.name for step in self.steps)

    def script(self) -> list[dict[str, Any]]:
        """Return the steps for execution."""
        return [step.to_dict() for step in self.steps]

    def suggested(self) -> list[dict[str, Any]]:
        """Return the steps as a suggestion: the worker chooses the tools and arguments."""
        return [{"name": step.name, **({"notes": step.notes} if step.notes else {})} for step in self.steps]


def segments_of(script: ScriptPlanContent) -> list[Segment]:
    """Split a script where the worker or the mode changes."""
    cut = groupby(script.steps, key=lambda step: (step.worker, step.execution_mode == "direct"))
    return [Segment(worker, is_direct, tuple(steps)) for (worker, is_direct), steps in cut]


async def problems_of(script: ScriptPlanContent, workers: Collection[str], cast: Cast) -> list[str]:
    """Return the errors of a script, one sentence each: unknown workers and tools, invalid arguments."""
    problems: list[str] = []
    for number, step in enumerate(script.steps):
        problems += [f"step {number} ({step.name}): {problem}" for problem in await _problems(step, workers, cast)]
    return problems


async def _problems(step: ScriptStep, workers: Collection[str], cast: Cast) -> Sequence[str]:
    if step.worker not in workers:
        return [f"there is no worker {step.worker!r}; there are {', '.join(workers)}"]
    tools = await cast.toolkit.tools_of(step.worker)
    if step.tool_name not in tools:
        return [f"{step.worker!r} has no tool {step.tool_name!r}; it has {', '.join(tools) or 'none'}"]
    if step.execution_mode == "guided":
        return []  # the worker chooses its arguments itself
    tool, arguments = tools[step.tool_name], thaw(step.args)
    return tool.check.problems(arguments) or (tool.types(arguments) if tool.types is not None else [])

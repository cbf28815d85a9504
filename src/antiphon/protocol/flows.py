"""The declared flows, and flows as JSON. A flow declares who may send what to whom, and when.

Seven flows are declared here: three between the actors of a thread, four between agents and workers. Each can be watched live
(`System.watch_flow`), and can check any thread that is stored or imported. Flows can also be written as JSON, so that a flow
in a file can check threads without code:

    {"name": "greeting", "about": "Two greet each other.", "roles": {"host": "hotel"}, "pattern": {"sequence": [
        {"from": "guest", "to": "host", "says": "HELLO"},
        {"maybe": [{"from": "host", "to": "guest", "says": "said"}]}]}}

A pattern is a step; or `sequence`, `choice`, `maybe` or `repeat` (with `least`) of patterns.
"""

from __future__ import annotations

from typing import Any, cast

from antiphon.protocol._automaton import (
    Choice,
    Flow,
    Pattern,
    Repeat,
    Sequence,
    Step,
    Verdict,
    choice,
    maybe,
    repeat,
    sequence,
)
from antiphon.protocol._values import PHASES

__all__ = [
    "FLOWS",
    "Flow",
    "Step",
    "Verdict",
    "choice",
    "find_flow",
    "flow_data",
    "maybe",
    "read_flow",
    "repeat",
    "sequence",
]


# ---------------------------------------------------------------- the flows of the protocol


def _phase(phase: str) -> tuple[Step, Step]:
    return (
        Step("thread", f"{phase} phase", "PROCESS_PHASE", where=(("phase_type", phase),)),
        Step(f"{phase} phase", "thread", "PHASE_PROCESSED", where=(("phase_type", phase),)),
    )


def _failure() -> tuple[Pattern, ...]:
    return (
        Step("agent manager", "phase", "ERROR"),
        Step("phase", "supervisor", "ERROR_NOTIFICATION"),
        maybe(Step("supervisor", "agent manager", "RESTART"), Step("agent manager", "supervisor", "RESTART_COMPLETE")),
        maybe(Step("supervisor", "phase", "ERROR_ACKNOWLEDGED")),
        repeat(Step("phase", "client", "ERROR_NOTIFICATION")),
    )


def _question() -> tuple[Step, Step]:
    return Step("user", "agent", "said"), Step("agent", "user", "said")


THREAD_EXECUTION = Flow(
    "thread-execution",
    "A client creates and starts a thread, which runs its phases in order and sends the client the result.",
    sequence(
        Step("client", "thread", "CREATE_THREAD"),
        Step("thread", "client", "THREAD_CREATED"),
        Step("client", "thread", "START_THREAD"),
        Step("thread", "client", "THREAD_STARTED"),
        *(step for phase in PHASES for step in _phase(phase)),
        repeat(choice(*(sequence(*_phase(phase)) for phase in PHASES))),  # where the last phase says that it goes on
        Step("thread", "client", "THREAD_RESULT"),
    ),
)

PHASE_PROCESSING = Flow(
    "phase-processing",
    "A thread has a phase run, which prepares the context and asks its agent.",
    repeat(
        Step("thread", "phase", "PROCESS_PHASE"),
        maybe(Step("phase", "phase", "PREPARE_CONTEXT"), Step("phase", "phase", "CONTEXT_PREPARED")),
        Step("phase", "agent manager", "PROCESS_WITH_AGENT"),
        Step("agent manager", "phase", "AGENT_RESPONSE"),
        Step("phase", "thread", "PHASE_PROCESSED"),
        least=1,
    ),
)

ERROR_HANDLING = Flow(
    "error-handling",
    "An agent fails; a supervisor has it begin anew, and the phase tries again, or stops with the cause. The client is told.",
    repeat(
        Step("phase", "agent manager", "PROCESS_WITH_AGENT"),
        repeat(
            *_failure(),  # after a stop, a phase tries again when its thread is resumed
            Step("phase", "agent manager", "RETRY"),
        ),
        choice(
            sequence(Step("agent manager", "phase", "AGENT_RESPONSE"), Step("phase", "thread", "PHASE_PROCESSED")),
            sequence(*_failure(), maybe(Step("phase", "thread", "ERROR"))),
        ),
        least=1,
    ),
)

REQUEST_RESPONSE = Flow(
    "request-response",
    "A user asks an agent, and the agent answers.",
    sequence(*_question(), repeat(*_question())),  # in a repetition alone, it could be others each time
)

TASK_DELEGATION = Flow(
    "task-delegation",
    "A controller gives tasks to workers, and each gives back its result.",
    repeat(Step("controller", "worker", "called"), Step("worker", "controller", "answered"), least=1),
)

TOOL_EXECUTION = Flow(
    "tool-execution",
    "A user asks an agent, which uses tools before it answers.",
    sequence(
        Step("user", "agent", "said"),
        repeat(
            repeat(
                choice(Step("agent", "tool", "called"), Step("agent", "tool", "said")),  # what it says when it calls
                least=1,
            ),
            repeat(Step("tool", "agent", "answered"), least=1),
            least=1,
        ),
        Step("agent", "user", "said"),
    ),
)

COLLABORATION = Flow(
    "collaboration",
    "A controller gives a task to a worker, which hands what it has to another, which gives back the result.",
    sequence(
        Step("controller", "first worker", "called"),
        choice(
            *(Step("first worker", "second worker", says) for says in ("answered", "said")),
            sequence(
                Step("first worker", "second worker", "called"),
                maybe(Step("second worker", "first worker", "answered")),
            ),
        ),
        choice(*(Step("second worker", "controller", says) for says in ("answered", "said"))),
    ),
)

FLOWS: tuple[Flow, ...] = (
    THREAD_EXECUTION,
    PHASE_PROCESSING,
    ERROR_HANDLING,
    REQUEST_RESPONSE,
    TASK_DELEGATION,
    TOOL_EXECUTION,
    COLLABORATION,
)
"""Every flow that is declared here."""


def find_flow(name: str) -> Flow:
    """Return a flow by its name.

    Raises:
        ValueError: there is none.
    """
    for flow in FLOWS:
        if flow.name == name:
            return flow
    raise ValueError(f"there is no flow {name!r}; there are {', '.join(flow.name for flow in FLOWS)}")


# ---------------------------------------------------------------- flows as JSON

_PATTERN = "a step with from, to and says, or one of sequence, choice, maybe and repeat with a list"


def read_flow(data: Any) -> Flow:
    """Return the flow that a JSON value declares.

    Raises:
        ValueError: the value is not a flow; the text says where it is wrong.
    """
    match data:
        case {"name": str(name), "pattern": pattern, **more} if more.keys() <= {"about", "roles"}:
            summary: Any = more.get("about", "")
            roles: Any = more.get("roles", {})
        case _:
            raise ValueError("a flow is an object with name and pattern, and perhaps about and roles")
    bound = _fields(roles, "roles")
    if not isinstance(summary, str) or not all(isinstance(name, str) for _, name in bound):
        raise ValueError("about is a text, and roles an object of texts")
    return Flow(name, summary, _pattern(pattern, "pattern"), bound)


def _pattern(value: Any, where: str) -> Pattern:
    match value:
        case {"from": str(sender), "to": str(receiver), "says": str(says), **more} if more.keys() <= {"where"}:
            return Step(sender, receiver, says, _fields(more.get("where", {}), f"{where}.where"))
        case {"sequence": parts, **more} if not more:
            return sequence(*_patterns(parts, f"{where}.sequence"))
        case {"choice": parts, **more} if not more:
            return choice(*_patterns(parts, f"{where}.choice"))
        case {"maybe": parts, **more} if not more:
            return maybe(*_patterns(parts, f"{where}.maybe"))
        case {"repeat": parts, **more} if more.keys() <= {"least"}:
            least: Any = more.get("least", 0)
            if type(least) is not int or not 0 <= least <= 100:  # noqa: PLR2004 (each is built)
                raise ValueError(f"{where}.least: a whole number from 0 to 100, not {least!r}")
            return repeat(*_patterns(parts, f"{where}.repeat"), least=least)
        case _:
            raise ValueError(f"{where}: a pattern is {_PATTERN}")


def _patterns(values: object, where: str) -> list[Pattern]:
    if not isinstance(values, list):
        raise ValueError(f"{where}: a list of patterns")  # noqa: TRY004 (data, not code)
    return [_pattern(value, f"{where}[{place}]") for place, value in enumerate(cast("list[Any]", values))]


def _fields(value: object, where: str) -> tuple[tuple[str, Any], ...]:
    if not isinstance(value, dict):
        raise ValueError(f"{where}: an object")  # noqa: TRY004 (data, not code)
    return tuple(cast("dict[str, Any]", value).items())


def flow_data(flow: Flow) -> dict[str, Any]:
    """Return a flow as the JSON that declares it."""
    data: dict[str, Any] = {"name": flow.name, "about": flow.about, "pattern": _data(flow.pattern)}
    return {**data, "roles": dict(flow.roles)} if flow.roles else data


def _data(pattern: Pattern) -> dict[str, Any]:
    match pattern:
        case Step(sender, receiver, says, where):
            return {"from": sender, "to": receiver, "says": says, **({"where": dict(where)} if where else {})}
        case Sequence(parts):
            return {"sequence": [_data(part) for part in parts]}
        case Choice((Sequence(parts), Sequence(()))):
            return {"maybe": [_data(part) for part in parts]}
        case Choice(parts):
            return {"choice": [_data(part) for part in parts]}
        case Repeat(part, least):
            parts = part.parts if isinstance(part, Sequence) else (part,)
            return {"repeat": [_data(inner) for inner in parts], **({"least": least} if least else {})}

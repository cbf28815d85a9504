"""The flows of the protocol, declared as data: three between the actors of a thread, four between agents and workers.

Each can be watched live (`System.watch_flow`), and judges any thread that is stored or comes from elsewhere.
"""

from __future__ import annotations

from antiphon.protocol._automaton import Flow, Step, choice, maybe, repeat, sequence
from antiphon.protocol._fields import PHASES

__all__ = ["FLOWS", "find_flow"]


def _phase(phase: str) -> tuple[Step, Step]:
    return (
        Step("thread", f"{phase} phase", "PROCESS_PHASE", where=(("phase_type", phase),)),
        Step(f"{phase} phase", "thread", "PHASE_PROCESSED", where=(("phase_type", phase),)),
    )


def _question() -> tuple[Step, Step]:
    return Step("user", "agent", "said"), Step("agent", "user", "said")


THREAD_EXECUTION = Flow(
    "thread-execution",
    "A client has a thread made and run, which goes through its phases in order and tells the client what came of it.",
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
    "An agent fails; a supervisor has it begin anew, and the phase tries again.",
    repeat(
        Step("phase", "agent manager", "PROCESS_WITH_AGENT"),
        repeat(
            Step("agent manager", "phase", "ERROR"),
            Step("phase", "supervisor", "ERROR_NOTIFICATION"),
            Step("supervisor", "agent manager", "RESTART"),
            Step("agent manager", "supervisor", "RESTART_COMPLETE"),
            maybe(Step("supervisor", "phase", "ERROR_ACKNOWLEDGED")),
            Step("phase", "agent manager", "RETRY"),
        ),
        Step("agent manager", "phase", "AGENT_RESPONSE"),
        Step("phase", "thread", "PHASE_PROCESSED"),
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

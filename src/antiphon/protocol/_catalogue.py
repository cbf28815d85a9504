"""Every type of the protocol, with the model of its data: each request after its reply.

The first line of a docstring says what the type means: the documentation takes it from there. `CATALOGUE` has the rows.
"""

from __future__ import annotations

from typing import Literal

from antiphon.messages._content import Count, Text
from antiphon.protocol._messages import Entry, Notice, Reply, Request, entries
from antiphon.protocol._values import (
    NOTHING,
    AgentConfig,
    AgentContext,
    AgentResult,
    ChatTurn,
    Object,
    Phase,
    PhaseContext,
    PhaseOutput,
    Positive,
    PreparedContext,
    Quantity,
    Share,
    ThreadState,
    Timestamp,
    Value,
)

# ---------------------------------------------------------------- threads


class ThreadCreated(Reply, frozen=True, type="THREAD_CREATED"):
    """The thread is there."""

    thread_id: Text
    status: Literal["created"] = "created"


class CreateThread(Request[ThreadCreated], frozen=True, type="CREATE_THREAD", family="thread"):
    """Create a thread for a user's input."""

    user_id: Text
    initial_input: Text
    metadata: Object = NOTHING
    """Such as the source and the session."""


class ThreadStarted(Reply, frozen=True, type="THREAD_STARTED"):
    """The thread runs."""

    thread_id: Text
    status: Literal["processing"] = "processing"
    started_at: Timestamp


class StartThread(Request[ThreadStarted], frozen=True, type="START_THREAD", family="thread"):
    """Start with the first phase."""

    thread_id: Text
    input: Text | None = None
    """The user's input of a later turn."""


class ThreadPaused(Reply, frozen=True, type="THREAD_PAUSED"):
    """The thread rests."""

    thread_id: Text
    status: Literal["paused"] = "paused"
    paused_at: Timestamp
    current_phase: Phase | None = None
    """The phase that goes on later; None for a thread without phases."""


class PauseThread(Request[ThreadPaused], frozen=True, type="PAUSE_THREAD", family="thread"):
    """Pause at the next boundary."""

    thread_id: Text


class ThreadResumed(Reply, frozen=True, type="THREAD_RESUMED"):
    """The thread runs again."""

    thread_id: Text
    status: Literal["processing"] = "processing"
    resumed_at: Timestamp
    current_phase: Phase | None = None
    """None for a thread without phases."""


class ResumeThread(Request[ThreadResumed], frozen=True, type="RESUME_THREAD", family="thread"):
    """Resume a paused thread."""

    thread_id: Text


class ThreadTerminated(Reply, frozen=True, type="THREAD_TERMINATED"):
    """The thread is over."""

    thread_id: Text
    status: Literal["terminated"] = "terminated"
    terminated_at: Timestamp
    reason: Text


class TerminateThread(Request[ThreadTerminated], frozen=True, type="TERMINATE_THREAD", family="thread"):
    """End a thread for good."""

    thread_id: Text
    reason: Text


class ThreadStatus(Reply, frozen=True, type="THREAD_STATUS"):
    """Where the thread is. The phases completed and remaining are all six, and the current one is the first that remains.

    A thread without phases has none of either.
    """

    thread_id: Text
    status: ThreadState | Literal["stopped"]
    """`stopped`: no program that runs can continue it; `reason` says why."""
    current_phase: Phase | None
    """None when none remains."""
    created_at: Timestamp
    updated_at: Timestamp
    phases_completed: tuple[Phase, ...]
    phases_remaining: tuple[Phase, ...]


class GetThreadStatus(Request[ThreadStatus], frozen=True, type="GET_THREAD_STATUS", family="thread"):
    """Ask where a thread is."""

    thread_id: Text


class ThreadResult(Notice, frozen=True, type="THREAD_RESULT", family="thread"):
    """A thread has ended: its outcome."""

    thread_id: Text
    status: Literal["completed", "failed"]
    outputs: Object
    """By phase, what `PhaseOutput` has."""
    response: Text | None = None
    """The answer to the user, of a thread that completed."""
    error_message: Text | None = None
    error_code: Text | None = None


# ---------------------------------------------------------------- phases


class PhaseProcessed(Reply, frozen=True, type="PHASE_PROCESSED"):
    """The phase is done."""

    thread_id: Text
    phase_type: Phase
    output: PhaseOutput
    processing_time: Quantity
    """In seconds."""


class ProcessPhase(Request[PhaseProcessed], frozen=True, type="PROCESS_PHASE", family="phase"):
    """Run one phase of a thread."""

    thread_id: Text
    phase_type: Phase
    input: Text
    context: PhaseContext | None = None


class PhaseInitialized(Reply, frozen=True, type="PHASE_INITIALIZED"):
    """The phase can be run."""

    phase_type: Phase
    status: Literal["ready"] = "ready"
    agent_id: Text


class InitializePhase(Request[PhaseInitialized], frozen=True, type="INITIALIZE_PHASE", family="phase"):
    """Configure a phase; an earlier configuration is replaced."""

    phase_type: Phase
    config: AgentConfig


class ContextPrepared(Reply, frozen=True, type="CONTEXT_PREPARED"):
    """The context is ready for an agent."""

    thread_id: Text
    phase_type: Phase
    context: PreparedContext


class PrepareContext(Request[ContextPrepared], frozen=True, type="PREPARE_CONTEXT", family="phase"):
    """Build an agent's context from the conversation."""

    thread_id: Text
    phase_type: Phase
    previous_phase_output: PhaseOutput | None
    """None before the first phase."""
    conversation_history: tuple[ChatTurn, ...]


class AgentInvoked(Reply, frozen=True, type="AGENT_INVOKED"):
    """The named agent has answered."""

    agent_id: Text
    result: AgentResult
    processing_time: Quantity
    """In seconds."""


class InvokeAgent(Request[AgentInvoked], frozen=True, type="INVOKE_AGENT", family="phase"):
    """Ask a named agent, from within a phase."""

    agent_id: Text
    input: Text
    context: AgentContext | None = None
    stream: bool = False
    """Whether to tell AGENT_STREAM_CHUNKs on the way to the answer."""


# ---------------------------------------------------------------- agents


class AgentResponse(Reply, frozen=True, type="AGENT_RESPONSE"):
    """The agent has answered."""

    result: AgentResult
    processing_time: Quantity
    """In seconds."""


class ProcessWithAgent(Request[AgentResponse], frozen=True, type="PROCESS_WITH_AGENT", family="agent"):
    """Ask the agent that the receiver keeps."""

    input: Text
    context: AgentContext | None = None
    agent_id: Text | None = None
    """Whom the sender expects there; refused if it is another."""


class AgentConfigUpdated(Reply, frozen=True, type="AGENT_CONFIG_UPDATED"):
    """The next run has the new settings."""

    agent_id: Text
    status: Literal["updated"] = "updated"


class UpdateAgentConfig(Request[AgentConfigUpdated], frozen=True, type="UPDATE_AGENT_CONFIG", family="agent"):
    """Change the settings that are given; the others stay."""

    agent_id: Text
    config: AgentConfig


class AgentStreamChunk(Notice, frozen=True, type="AGENT_STREAM_CHUNK", family="agent"):
    """A piece of an unfinished answer."""

    agent_id: Text
    index: Count
    """Its place among the pieces, from 0."""
    text: Text


# ---------------------------------------------------------------- the system


class HeartbeatResponse(Reply, frozen=True, type="HEARTBEAT_RESPONSE"):
    """The actor lives."""

    status: Literal["alive"] = "alive"
    uptime: Quantity
    """In seconds, since its last start."""
    load: Share
    """How busy it is, from 0 to 1: how full its mailbox is, or how many of its handlers are at work, whichever is more."""


class Heartbeat(Request[HeartbeatResponse], frozen=True, type="HEARTBEAT", family="system"):
    """Ask whether an actor is alive."""


class SupervisionStarted(Reply, frozen=True, type="SUPERVISION_STARTED"):
    """The actor is watched."""

    actor_id: Text
    status: Literal["supervised"] = "supervised"


class Supervise(Request[SupervisionStarted], frozen=True, type="SUPERVISE", family="system"):
    """Ask a supervisor to watch an actor."""

    actor_id: Text


class RestartComplete(Reply, frozen=True, type="RESTART_COMPLETE"):
    """The actor has begun anew."""

    actor_id: Text
    status: Literal["restarted"] = "restarted"
    restarted_at: Timestamp


class Restart(Request[RestartComplete], frozen=True, type="RESTART", family="system"):
    """Restart, or restart another actor."""

    actor_id: Text | None = None
    """Whom a supervisor is to restart; else the receiver."""
    reason: Text


class StopComplete(Reply, frozen=True, type="STOP_COMPLETE"):
    """The actor accepts no more messages."""

    actor_id: Text
    status: Literal["stopped"] = "stopped"
    stopped_at: Timestamp


class Stop(Request[StopComplete], frozen=True, type="STOP", family="system"):
    """Stop, or stop another actor."""

    actor_id: Text | None = None
    """Whom a supervisor is to stop; else the receiver."""
    reason: Text


# ---------------------------------------------------------------- errors


class ErrorAcknowledged(Reply, frozen=True, type="ERROR_ACKNOWLEDGED"):
    """The supervisor has dealt with it."""

    actor_id: Text
    action_taken: Literal["restart", "stop", "escalate", "ignore"]
    error_logged: bool
    retry_after: Quantity | None = None
    """Seconds to wait before the failed message is retried."""


class Error(Request[ErrorAcknowledged], frozen=True, type="ERROR", family="error"):
    """A message failed. As an answer it comes in an `ErrorResponse`, to which nothing is due."""

    error_message: Text
    error_code: Text | None = None
    thread_id: Text | None = None
    phase_type: Phase | None = None
    details: Value = None


class ErrorNotification(Request[ErrorAcknowledged], frozen=True, type="ERROR_NOTIFICATION", family="error"):
    """Tell a supervisor that an actor failed."""

    actor_id: Text
    """Who failed."""
    error_message: Text
    error_code: Text | None = None
    details: Value
    reported_by: Text | None = None
    failed_message_id: Text | None = None
    retryable: bool | None = None
    """Whether a RETRY of the failed message may succeed; None: the actor itself has failed, and not only a message."""
    retry_after: Quantity | None = None
    """Seconds that a provider asks to wait."""
    attempt: Positive | None = None
    """Which try of the message has failed, from 1."""
    max_attempts: Positive | None = None


class Retry(Request[Reply], frozen=True, type="RETRY", family="error"):
    """Retry a failed message. The answer is that of the original message."""

    original_message_id: Text
    attempt: Positive
    """Which try this is, from 1."""
    max_attempts: Positive
    original_message: Value = None
    """The message itself, for a receiver that may not have it any more."""


# ---------------------------------------------------------------- talk


class Talk(Notice, frozen=True, type="MESSAGE", family="talk"):
    """A chat message."""

    role: Text
    content: Text


CATALOGUE: tuple[Entry, ...] = entries()
"""Every type of the protocol that can be sent, one row each."""

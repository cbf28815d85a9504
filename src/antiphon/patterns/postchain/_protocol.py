"""The requests and notices of PostChain that `antiphon.protocol` does not have, and the addresses of its actors."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable
from typing import Final, cast

from antiphon.protocol import PHASES, Notice, Object, Phase, PhaseContext, PhaseOutput, Reply, Request
from antiphon.runtime import system_thread


def agent_of(phase: str) -> str:
    """Return the name of a phase's agent, which is its manager's address."""
    return f"agent/{phase}"


def phase_of_agent(agent_id: str, own: Iterable[str] = ()) -> Phase | None:
    """Return the phase whose agent has a name, one of the six or an `own` one; None if none has."""
    named = (phase for phase in (*PHASES, *own) if agent_id.partition(":")[0] == agent_of(phase))
    return cast("Phase | None", next(named, None))


def config_thread(phase: str) -> str:
    """Return the thread with the configuration messages of a phase's agent."""
    return system_thread(agent_of(phase))


def thread_of_message(message_id: str) -> str:
    """Return the thread id of a CREATE_THREAD; the same message gives the same thread."""
    digest = hashlib.blake2b(message_id.encode(errors="replace"), digest_size=10).digest()
    return f"t-{base64.b32encode(digest).decode().lower()}"


def thread_address(thread_id: str) -> str:
    """Return the address of a thread's actor."""
    return f"thread/{thread_id}"


CLIENT = "client/local"
"""The default sender."""

SUPERVISOR = "supervisor/agents"

DELEGATE: Final = "delegate/1"
"""The actor that runs the phases in threads of other patterns."""
OUTSIDE: Final = "client/outside"
"""The sender of messages from other processes."""


class RunThread(Notice, frozen=True, type="RUN_THREAD", family="thread"):
    """Run the phases, from the state of the thread."""

    thread_id: str


class ChainAnswered(Reply, frozen=True, type="CHAIN_ANSWERED"):
    """The phases are done."""

    thread_id: str
    result: Object
    """The data of the THREAD_RESULT of a completed thread."""


class AskChain(Request[ChainAnswered], frozen=True, type="ASK_CHAIN", family="thread"):
    """Run the phases once, in a thread of another pattern."""

    thread_id: str
    input: str


class OwnPhaseProcessed(Reply, frozen=True, type="OWN_PHASE_PROCESSED"):
    """A phase of the program is done."""

    thread_id: str
    phase: str
    output: PhaseOutput
    processing_time: float


class ProcessOwnPhase(Request[OwnPhaseProcessed], frozen=True, type="PROCESS_OWN_PHASE", family="phase"):
    """Run a phase of the program: PROCESS_PHASE, for phases that the protocol of Choir does not know.

    The field is not `phase_type`, which has one of the six in every message.
    """

    thread_id: str
    phase: str
    input: str
    context: PhaseContext | None = None


class ThreadSubscribed(Reply, frozen=True, type="THREAD_SUBSCRIBED"):
    """From now on, at the end of each turn."""

    thread_id: str
    subscriber: str


class SubscribeThread(Request[ThreadSubscribed], frozen=True, type="SUBSCRIBE_THREAD", family="thread"):
    """Subscribe to THREAD_RESULT."""

    thread_id: str

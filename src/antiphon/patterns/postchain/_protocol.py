"""The requests and notices of PostChain that `antiphon.protocol` does not have, and the addresses of its actors."""

from __future__ import annotations

import base64
import hashlib
from typing import Final

from antiphon.protocol import PHASES, Notice, Object, Phase, Reply, Request
from antiphon.runtime import system_thread


def agent_of(phase: str) -> str:
    """Return the name of a phase's agent, and the address of who manages it."""
    return f"agent/{phase}"


def phase_of_agent(agent_id: str) -> Phase | None:
    """Return the phase whose agent has a name; None if none has."""
    return next((phase for phase in PHASES if agent_id.partition(":")[0] == agent_of(phase)), None)


def config_thread(phase: str) -> str:
    """Return the thread of what is said about a phase's agent and concerns no conversation."""
    return system_thread(agent_of(phase))


def thread_of_message(message_id: str) -> str:
    """Return the thread that a CREATE_THREAD makes: the same message, the same thread."""
    digest = hashlib.blake2b(message_id.encode(errors="replace"), digest_size=10).digest()
    return f"t-{base64.b32encode(digest).decode().lower()}"


def thread_address(thread_id: str) -> str:
    """Return where the actor of a thread lives."""
    return f"thread/{thread_id}"


CLIENT = "client/local"
"""Who asks, where nobody says who does."""

SUPERVISOR = "supervisor/agents"

DELEGATE: Final = "delegate/1"
"""Goes through the phases in threads of other patterns."""
POSTED: Final = "door/1"
OUTSIDE: Final = "client/outside"
"""Who speaks that is another process."""


class TakeUp(Notice, frozen=True, type="TAKE_UP", family="thread"):
    """Somebody has posted a message to a thread."""

    thread_id: str
    invocation_id: str


class RunThread(Notice, frozen=True, type="RUN_THREAD", family="thread"):
    """Go through the phases, from where the thread is."""

    thread_id: str


class ChainAnswered(Reply, frozen=True, type="CHAIN_ANSWERED"):
    """The phases are done."""

    thread_id: str
    result: Object
    """What THREAD_RESULT has of a thread that completed."""


class AskChain(Request[ChainAnswered], frozen=True, type="ASK_CHAIN", family="thread"):
    """Go through the phases once, in a thread of another pattern."""

    thread_id: str
    input: str


class ThreadSubscribed(Reply, frozen=True, type="THREAD_SUBSCRIBED"):
    """From now on, at the end of each turn."""

    thread_id: str
    subscriber: str


class SubscribeThread(Request[ThreadSubscribed], frozen=True, type="SUBSCRIBE_THREAD", family="thread"):
    """Be told THREAD_RESULT too."""

    thread_id: str

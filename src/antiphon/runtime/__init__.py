"""Actors that look after each other: addresses, mailboxes, supervision, and one journal for everything that is said."""

from antiphon.errors import FailedError, UnknownOutcomeError
from antiphon.messages.keys import again_id, park_id
from antiphon.runtime._actor import Actor, handles
from antiphon.runtime._address import Address, system_thread
from antiphon.runtime._bus import Bus, LocalBus, Parcel, Take
from antiphon.runtime._context import ActorSystem, Context
from antiphon.runtime._effects import Effect, Effects, Park, Run
from antiphon.runtime._envelope import Course, Standing
from antiphon.runtime._escalation import Down
from antiphon.runtime._journal import Admit, Journal, observe
from antiphon.runtime._observer import (
    Activity,
    AgentOperation,
    DeadLetter,
    Delivery,
    EffectRun,
    ModelOperation,
    Observer,
    Operation,
    Place,
    ToolOperation,
    WatchedSystem,
    describe,
    tag,
)
from antiphon.runtime._recovery import Parked, Recovered
from antiphon.runtime._results import error_of, error_response, from_wire, response_type
from antiphon.runtime._rows import (
    AGAIN,
    PARK,
    begun,
    cut_result,
    ended,
    is_too_large,
    says_the_same_value,
    text_of,
    unused,
)
from antiphon.runtime._run import run
from antiphon.runtime._settings import Budget, RuntimePort, Settings
from antiphon.runtime._state import ActorState
from antiphon.runtime._supervision import Backoff, Decision, Supervision, Supervisor, concerned, decide
from antiphon.runtime._system import ROOT, Ref, System
from antiphon.runtime._topics import Subscription, Topic, subscribe, type_of

__all__ = [
    "AGAIN",
    "PARK",
    "ROOT",
    "Activity",
    "Actor",
    "ActorState",
    "ActorSystem",
    "Address",
    "Admit",
    "AgentOperation",
    "Backoff",
    "Budget",
    "Bus",
    "Context",
    "Course",
    "DeadLetter",
    "Decision",
    "Delivery",
    "Down",
    "Effect",
    "EffectRun",
    "Effects",
    "FailedError",
    "Journal",
    "LocalBus",
    "ModelOperation",
    "Observer",
    "Operation",
    "Parcel",
    "Park",
    "Parked",
    "Place",
    "Recovered",
    "Ref",
    "Run",
    "RuntimePort",
    "Settings",
    "Standing",
    "Subscription",
    "Supervision",
    "Supervisor",
    "System",
    "Take",
    "ToolOperation",
    "Topic",
    "UnknownOutcomeError",
    "WatchedSystem",
    "again_id",
    "begun",
    "concerned",
    "cut_result",
    "decide",
    "describe",
    "ended",
    "error_of",
    "error_response",
    "from_wire",
    "handles",
    "is_too_large",
    "observe",
    "park_id",
    "response_type",
    "run",
    "says_the_same_value",
    "subscribe",
    "system_thread",
    "tag",
    "text_of",
    "type_of",
    "unused",
]

"""Actors that look after each other: addresses, mailboxes, supervision, and one journal for everything that is said."""

from antiphon.errors import FailedError, UnknownOutcomeError
from antiphon.runtime._actor import Actor, handles
from antiphon.runtime._address import Address, system_thread
from antiphon.runtime._bus import Bus, LocalBus, Parcel, Take
from antiphon.runtime._context import Context
from antiphon.runtime._effects import Effects
from antiphon.runtime._escalation import Down
from antiphon.runtime._journal import Admit
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
from antiphon.runtime._run import run
from antiphon.runtime._services import ActorSystem
from antiphon.runtime._settings import Budget, RuntimePort, Settings
from antiphon.runtime._state import ActorState
from antiphon.runtime._supervision import Backoff, Supervision
from antiphon.runtime._supervisor import Supervisor
from antiphon.runtime._system import ROOT, Ref, System
from antiphon.runtime._topics import Subscription, Topic, subscribe, type_of

__all__ = [
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
    "DeadLetter",
    "Delivery",
    "Down",
    "EffectRun",
    "Effects",
    "FailedError",
    "LocalBus",
    "ModelOperation",
    "Observer",
    "Operation",
    "Parcel",
    "Parked",
    "Place",
    "Recovered",
    "Ref",
    "RuntimePort",
    "Settings",
    "Subscription",
    "Supervision",
    "Supervisor",
    "System",
    "Take",
    "ToolOperation",
    "Topic",
    "UnknownOutcomeError",
    "WatchedSystem",
    "describe",
    "handles",
    "run",
    "subscribe",
    "system_thread",
    "tag",
    "type_of",
]

"""Actors that look after each other: addresses, mailboxes, supervision, and one journal for everything that is said."""

from antiphon.runtime._actor import Actor, handles
from antiphon.runtime._address import Address, system_thread
from antiphon.runtime._bonds import Down
from antiphon.runtime._bus import Bus, LocalBus, Parcel, Take
from antiphon.runtime._context import Context
from antiphon.runtime._dead import DeadLetter
from antiphon.runtime._effects import Effects, Run
from antiphon.runtime._journal import Budget
from antiphon.runtime._port import RuntimePort
from antiphon.runtime._recovery import Parked, Recovered
from antiphon.runtime._ref import Ref
from antiphon.runtime._settings import Settings
from antiphon.runtime._state import ActorState
from antiphon.runtime._supervision import Backoff, Decision, Supervision, concerned, decide
from antiphon.runtime._supervisor import Supervisor
from antiphon.runtime._system import ROOT, System

__all__ = [
    "ROOT",
    "Actor",
    "ActorState",
    "Address",
    "Backoff",
    "Budget",
    "Bus",
    "Context",
    "DeadLetter",
    "Decision",
    "Down",
    "Effects",
    "LocalBus",
    "Parcel",
    "Parked",
    "Recovered",
    "Ref",
    "Run",
    "RuntimePort",
    "Settings",
    "Supervision",
    "Supervisor",
    "System",
    "Take",
    "concerned",
    "decide",
    "handles",
    "system_thread",
]

"""Actors that look after each other: addresses, mailboxes, supervision, and one journal for everything that is said."""

from antiphon.runtime._actor import Actor, handles
from antiphon.runtime._address import Address, system_thread
from antiphon.runtime._again import Standing
from antiphon.runtime._bonds import Down
from antiphon.runtime._bus import Bus, LocalBus, Parcel, Take
from antiphon.runtime._context import Context
from antiphon.runtime._dead import DeadLetter
from antiphon.runtime._effects import Course, Effect, Effects, FailedError, Park, Run, UnknownOutcomeError
from antiphon.runtime._journal import Admit, Budget, Journal
from antiphon.runtime._observer import Activity, Delivery, EffectRun, Observer, Place, describe, tag
from antiphon.runtime._operations import AgentOperation, ModelOperation, Operation, ToolOperation
from antiphon.runtime._own import cut_result, is_too_large, text_of
from antiphon.runtime._port import RuntimePort
from antiphon.runtime._recovery import Parked, Recovered
from antiphon.runtime._ref import Ref
from antiphon.runtime._rows import AGAIN, PARK, again_id, begun, ended, park_id, unused
from antiphon.runtime._run import run
from antiphon.runtime._same import says_the_same_value
from antiphon.runtime._settings import Settings
from antiphon.runtime._state import ActorState
from antiphon.runtime._supervision import Backoff, Decision, Supervision, concerned, decide
from antiphon.runtime._supervisor import Supervisor
from antiphon.runtime._system import ROOT, System

__all__ = [
    "AGAIN",
    "PARK",
    "ROOT",
    "Activity",
    "Actor",
    "ActorState",
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
    "Supervision",
    "Supervisor",
    "System",
    "Take",
    "ToolOperation",
    "UnknownOutcomeError",
    "again_id",
    "begun",
    "concerned",
    "cut_result",
    "decide",
    "describe",
    "ended",
    "handles",
    "is_too_large",
    "park_id",
    "run",
    "says_the_same_value",
    "system_thread",
    "tag",
    "text_of",
    "unused",
]

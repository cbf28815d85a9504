"""Names for libraries that build on the runtime: rows of the journal, effects outside of actors, decisions, wire messages.

A program with actors needs only `antiphon.runtime`. `antiphon.agents` and `antiphon.patterns` are built on this module: a
run of an agent has no actor, and writes the same rows as a handler. These names may change with a minor version; stored rows
keep their meaning.
"""

from antiphon.runtime._course import Course
from antiphon.runtime._effects import Effect, GivenUp, Park, Run, call_plain, check_function, confirmed, start_confirmed
from antiphon.runtime._exchange import error_response, from_wire, response_type
from antiphon.runtime._gates import LIFE, LIFE_ACTOR, Gates, GateState, LifeState
from antiphon.runtime._hosting import read_take_overs
from antiphon.runtime._journal import Journal, observe
from antiphon.runtime._lease import Lease, has_other_build, is_of_this_process, process_host, takes_another_build, unfit_reason
from antiphon.runtime._life import read_status
from antiphon.runtime._permits import RequestPermit
from antiphon.runtime._reporting import observed_run
from antiphon.runtime._rows import (
    AGAIN,
    APPROVE,
    PARK,
    REOPEN,
    RUN,
    STOP,
    Standing,
    begun,
    cut_result,
    enclosure_of,
    ended,
    error_of,
    error_text,
    has_work,
    is_too_large,
    notice_in,
    says_the_same_value,
    stopped_error,
    stops_in,
    text_of,
    unused,
)
from antiphon.runtime._settings import GOES_ON, STOPPED
from antiphon.runtime._supervision import Directive, concerned, decide
from antiphon.runtime._work import OpenWork

__all__ = [
    "AGAIN",
    "APPROVE",
    "GOES_ON",
    "LIFE",
    "LIFE_ACTOR",
    "PARK",
    "REOPEN",
    "RUN",
    "STOP",
    "STOPPED",
    "Course",
    "Directive",
    "Effect",
    "GateState",
    "Gates",
    "GivenUp",
    "Journal",
    "Lease",
    "LifeState",
    "OpenWork",
    "Park",
    "RequestPermit",
    "Run",
    "Standing",
    "begun",
    "call_plain",
    "check_function",
    "concerned",
    "confirmed",
    "cut_result",
    "decide",
    "enclosure_of",
    "ended",
    "error_of",
    "error_response",
    "error_text",
    "from_wire",
    "has_other_build",
    "has_work",
    "is_of_this_process",
    "is_too_large",
    "notice_in",
    "observe",
    "observed_run",
    "process_host",
    "read_status",
    "read_take_overs",
    "response_type",
    "says_the_same_value",
    "start_confirmed",
    "stopped_error",
    "stops_in",
    "takes_another_build",
    "text_of",
    "unfit_reason",
    "unused",
]

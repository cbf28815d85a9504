"""Teams: an orchestrator plans in phases, managers break each into steps or a script, workers act, and it is all said.

Every message is one of the fourteen types of the `agent-framework` format. `Team` is what is opened; `TeamStore` shows what
was said from any side. Where to begin taint: `_orchestrator`, `_manager`, `_worker`, in this order.
"""

from antiphon.dialects.agent_framework import BaseMessageStore, RecordingMessageStore
from antiphon.patterns.teams._delegation import DelegationEnd
from antiphon.patterns.teams._flows import TEAM_FLOWS
from antiphon.patterns.teams._specs import ManagerSpec, TeamLimits
from antiphon.patterns.teams._store import TeamStore
from antiphon.patterns.teams._team import Team

__all__ = [
    "TEAM_FLOWS",
    "BaseMessageStore",
    "DelegationEnd",
    "ManagerSpec",
    "RecordingMessageStore",
    "Team",
    "TeamLimits",
    "TeamStore",
]

from antiphon.patterns.teams._roster import TEAM_FLOWS as TEAM_FLOWS
from antiphon.patterns.teams._roster import ManagerSpec as ManagerSpec
from antiphon.patterns.teams._roster import TeamLimits as TeamLimits
from antiphon.patterns.teams._team import Team as Team
from antiphon.patterns.teams._transcript import TeamStore as TeamStore

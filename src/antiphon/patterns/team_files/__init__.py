"""Team files: agents, models, tools, permissions and a pattern in one TOML file, ready to run."""

from antiphon.errors import TeamFileError
from antiphon.patterns.team_files._build import open_team
from antiphon.patterns.team_files._form import TeamAgent, TeamFile

__all__ = ["TeamAgent", "TeamFile", "TeamFileError", "open_team"]

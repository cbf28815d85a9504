"""Team files: agents, models, tools, permissions and a pattern in one TOML file, ready to run."""

from antiphon.patterns.team_files._team_file import open_team

__all__ = [
    "open_team",
]

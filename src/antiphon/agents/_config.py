"""Earlier place of `antiphon.agents.config`, until the patterns use the public one."""

from antiphon.agents.config import read_toml

__all__ = ["read_toml"]

"""The builders of `antiphon.dialects.agent_framework.message_builder`, under the path that the format's documents use."""

from antiphon.dialects.agent_framework.message_builder import *  # noqa: F403 (all of it, and nothing else)
from antiphon.dialects.agent_framework.message_builder import __all__  # noqa: F401

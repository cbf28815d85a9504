"""The path under which the format's documents import their builders: `utils.message_builder`."""

from antiphon.dialects.agent_framework.utils import message_builder

__all__ = ["message_builder"]

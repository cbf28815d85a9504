"""The counterparts that tests ask for by name."""

from tests.providers.model import local_model

__all__ = ["local_model"]

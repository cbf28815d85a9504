"""The real model that tests of streams ask for by name."""

from tests.providers.model import local_model

__all__ = ["local_model"]

"""What antiphon ships so that others can test theirs: fakes that are real, and checks of what is promised."""

from antiphon.testing._dialects import check_dialect
from antiphon.testing._port import CountingPort

__all__ = ["CountingPort", "check_dialect"]

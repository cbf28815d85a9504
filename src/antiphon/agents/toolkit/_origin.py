"""Earlier names of `antiphon.agents.toolkit.taint`, until the patterns use the public ones."""

from antiphon.agents.toolkit.taint import Taint as Reading
from antiphon.agents.toolkit.taint import current_taint as current_reading
from antiphon.agents.toolkit.taint import taint_scope as reading_scope
from antiphon.agents.toolkit.taint import untrusted_in

__all__ = ["Reading", "current_reading", "reading_scope", "untrusted_in"]

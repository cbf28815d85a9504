"""What the built-in tools say about themselves, where the runtime and the toolkit look for it: in a tool's metadata."""

from __future__ import annotations

from typing import Any

LOOKS: dict[str, Any] = {"antiphon": {"effects": "none", "allows_untrusted": True}}
"""It changes nothing, and what it returns is its own."""
READS: dict[str, Any] = {"antiphon": {"effects": "none", "untrusted": True, "allows_untrusted": True}}
"""It changes nothing, and what it returns may have been written by anybody."""
LOOKS_OUTSIDE: dict[str, Any] = {"antiphon": {"effects": "none", "untrusted": True, "allows_untrusted": False}}
"""The same, but to ask is to tell: what goes into an address or a query leaves the machine."""

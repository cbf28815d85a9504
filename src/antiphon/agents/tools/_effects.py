"""Metadata of the built-in tools, for the runtime and the toolkit."""

from __future__ import annotations

from typing import Any

LOOKS: dict[str, Any] = {"antiphon": {"effects": "none", "allows_untrusted": True}}
"""It changes nothing, and its result is trusted."""
READS: dict[str, Any] = {"antiphon": {"effects": "none", "untrusted": True, "allows_untrusted": True}}
"""It changes nothing, and its result is untrusted."""
LOOKS_OUTSIDE: dict[str, Any] = {"antiphon": {"effects": "none", "untrusted": True, "allows_untrusted": False}}
"""The same, but it needs an approval after untrusted input: its arguments leave the machine."""

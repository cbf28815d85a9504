"""The rules, all of them, in the order in which they are mended: a later one sees what an earlier one has done."""

from __future__ import annotations

from antiphon.checks._content import CONTENT
from antiphon.checks._media import MEDIA
from antiphon.checks._naming import NAMING
from antiphon.checks._order import ORDER
from antiphon.checks._pairing import PAIRING
from antiphon.checks._proofs import PROOFS
from antiphon.checks._request import REQUEST
from antiphon.checks._rule import Rule

__all__ = ["RULES"]

RULES: tuple[Rule, ...] = (*PAIRING, *PROOFS, *NAMING, *MEDIA, *REQUEST, *CONTENT, *ORDER)

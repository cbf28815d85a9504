"""The fidelity matrix of the docs: which facets are lost between which formats, measured, not claimed.

To write it anew: `UPDATE_MATRIX=1 make test ARGS="-k matrix"`.
"""

import os
from pathlib import Path

from tests.dialects.samples import SAMPLES

from antiphon import decode, encode
from antiphon.dialects import FACETS, meaning

PAGE = Path(__file__).parents[2] / "docs" / "dialects" / "index.md"
BEGIN, END = "<!-- matrix -->\n", "<!-- /matrix -->\n"


def lost(source: str, target: str) -> list[str]:
    """The facets of everything the source's samples say that do not come back from the target, in their usual order."""
    conversation = decode(SAMPLES[source], source)
    there = encode(conversation, target)
    before, after = meaning(conversation), meaning(decode(there.value, target))
    found = {
        facet
        for ours, theirs in zip(before, after, strict=True)
        for facet in {*ours, *theirs}
        if ours.get(facet) != theirs.get(facet)
    }

    assert found == {loss.what for loss in there.losses if loss.message_id is not None}
    return [facet for facet in FACETS if facet in found]


def matrix() -> str:
    targets = ["house", *SAMPLES]
    rows = [f"| from ↓ to → | {' | '.join(targets)} |", "|---" * (len(targets) + 1) + "|"]
    for source in SAMPLES:
        cells = ["–" if source == target else ", ".join(lost(source, target)) or "nothing" for target in targets]
        rows.append(f"| **{source}** | {' | '.join(cells)} |")
    return "\n".join(rows) + "\n"


def test_the_matrix_in_the_docs_is_the_measured_one() -> None:
    page = PAGE.read_text()
    before, rest = page.split(BEGIN)
    shown, after = rest.split(END)
    if os.environ.get("UPDATE_MATRIX"):
        PAGE.write_text(before + BEGIN + matrix() + END + after)
    else:
        assert shown == matrix()

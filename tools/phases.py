"""Write the picture of the phases of a delivery into docs/architecture.md, from the table in the source."""

from pathlib import Path
from textwrap import wrap

from antiphon.runtime._states import TRANSITIONS

PAGE = Path(__file__).parents[1] / "docs" / "architecture.md"
BEGIN, END = "<!-- phases: `python tools/phases.py` -->\n", "<!-- /phases -->\n"


def picture() -> str:
    """Return the phases, each with the events that end it and the phases that follow."""
    lines: list[str] = []
    for phase, events in TRANSITIONS.items():
        stays = [event.value for event, after in events.items() if after is phase]
        moves = [f"{event.value}→{after.value}" for event, after in events.items() if after is not phase]
        parts = [*moves, *([f"nothing changes it: {', '.join(stays)}"] if stays else [] if moves else ["the end"])]
        lines += wrap("  ".join(parts), 110, initial_indent=f"{phase.value:<14}", subsequent_indent=" " * 14)
    return "```text\n" + "\n".join(lines) + "\n```\n"


def with_picture(page: str) -> str:
    """Return the page with the picture of this table."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}{picture()}{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(with_picture(PAGE.read_text(encoding="utf-8")), encoding="utf-8")

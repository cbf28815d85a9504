"""The pages of the rules: what is told from the table, and the example that each of them has."""

import re
from pathlib import Path
from typing import Any

from pytest_examples import find_examples

from antiphon.checks import TARGETS
from antiphon.checks._rule import CheckRule
from antiphon.checks._verbs import RULES

FOLDER = Path(__file__).parent.parent.parent / "docs" / "checks"
INDEX = FOLDER / "index.md"
BY_CODE = {rule.code: rule for rule in sorted(RULES, key=lambda rule: rule.code)}


def page_of(code: str) -> Path:
    return FOLDER / f"{code}.md"


def example_of(code: str) -> dict[str, Any]:
    """Run the example of a page: it leaves a `conversation`, its `target`, and the conversation `mended`."""
    (example,) = find_examples(page_of(code))
    names: dict[str, Any] = {"print": lambda *values: None}
    exec(compile(example.source, page_of(code), "exec"), names)
    return names


def head_of(rule: CheckRule) -> str:
    """Return what a page says of its rule."""
    does = "`repair` does it." if rule.mend is not None else "`repair` leaves it alone."
    lines = [f"*{_severity(rule)}* {_targets(rule)}", "", rule.why, "", f"**How to mend it.** {rule.hint} {does}", ""]
    if rule.answers:
        lines += ["| target | what it answers |", "|---|---|"]
        lines += [f"| {TARGETS[name].title} | {words} |" for name, words in rule.answers.items()]
    return "\n".join(lines).strip()


def _severity(rule: CheckRule) -> str:
    if rule.is_eased:
        return (
            "An error in what was read from the target's own format, and is written there as it was; a warning in everything "
            "else, which the dialect writes so that it is accepted."
        )
    return "An error." if rule.severity == "error" else "A warning."


def _targets(rule: CheckRule) -> str:
    if not rule.targets:
        return "Looked for with every target, and without one."
    return f"Looked for with {', '.join(f'`{name}`' for name in rule.targets)}."


def with_head(page: str, rule: CheckRule) -> str:
    title = f"# {rule.code}: {rule.title}"
    body = re.sub(r"\A.*?(?=^## Example$)", "", page, flags=re.DOTALL | re.MULTILINE)
    return f"{title}\n\n{head_of(rule)}\n\n{body}"


def with_table(page: str) -> str:
    rows = [
        f"| [{rule.code}]({rule.code}.md) | {rule.title} | {rule.severity} | {', '.join(rule.targets) or 'any'} |"
        for rule in BY_CODE.values()
    ]
    table = "\n".join(["| code | what is wrong | at worst | target |", "|---|---|---|---|", *rows])
    return re.sub(r"(?<=<!-- rules -->\n).*?(?=<!-- /rules -->)", lambda _: f"{table}\n", page, flags=re.DOTALL)

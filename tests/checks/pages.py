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
    does = "`repair` does this." if rule.mend is not None else "`repair` does not change it."
    lines = [f"*{_severity(rule)}* {_targets(rule)}", "", rule.why, "", f"**Fix.** {rule.hint} {does}", ""]
    if rule.answers:
        lines += ["| provider | error message |", "|---|---|"]
        lines += [f"| {TARGETS[name].title} | {words} |" for name, words in rule.answers.items()]
    return "\n".join(lines).strip()


def _severity(rule: CheckRule) -> str:
    if rule.is_eased:
        return (
            "An error in messages that were read from the target's own format, because they are written back unchanged. "
            "A warning in all others: the dialect writes them in a form that the target accepts."
        )
    return "An error." if rule.severity == "error" else "A warning."


def _targets(rule: CheckRule) -> str:
    if not rule.targets:
        return "Checked for every target, and without a target."
    return f"Checked for {', '.join(f'`{name}`' for name in rule.targets)}."


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

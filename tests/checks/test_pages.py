"""Each rule has a page, told from the table, with an example that fails and its mended form."""

from collections.abc import Sequence

import pytest
from tests.checks.pages import BY_CODE, INDEX, example_of, page_of, with_head, with_table

from antiphon import Conversation, check, encode, repair
from antiphon.checks import TARGETS, Finding
from antiphon.checks._findings import released

ROOT = INDEX.parent.parent.parent


def errors(findings: Sequence[Finding], code: str = "") -> list[Finding]:
    return [finding for finding in findings if finding.severity == "error" and finding.code.startswith(code)]


@pytest.mark.parametrize("code", BY_CODE)
def test_a_page_says_what_the_table_says(code: str, request: pytest.FixtureRequest) -> None:
    """`--update-examples` writes it."""
    page = page_of(code).read_text()
    told = with_head(page, BY_CODE[code])

    if request.config.getoption("update_examples"):
        page_of(code).write_text(told)
    assert page_of(code).read_text() == told


def test_the_index_has_every_rule(request: pytest.FixtureRequest) -> None:
    told = with_table(INDEX.read_text())

    if request.config.getoption("update_examples"):
        INDEX.write_text(told)
    assert INDEX.read_text() == told
    assert sorted(path.stem for path in INDEX.parent.glob("AP*.md")) == list(BY_CODE)
    assert all(f"checks/{code}.md" in (ROOT / "mkdocs.yml").read_text() for code in BY_CODE)


@pytest.mark.slow
@pytest.mark.parametrize("code", BY_CODE)
def test_an_example_is_found_and_mended(code: str) -> None:
    """The rule names the broken history, as badly as it can, and nothing is refused in the mended one."""
    names, rule = example_of(code), BY_CODE[code]
    found = [finding for finding in check(names["conversation"], names["target"]) if finding.code == code]
    left = [finding for finding in check(names["mended"], names["target"]) if finding.code == code]

    assert found
    if not (rule.is_eased and found[0].severity == "warning"):
        assert found[0].severity == rule.severity
    assert not errors(check(names["mended"], names["target"]))
    assert not left or (rule.is_eased and {finding.severity for finding in left} == {"warning"})


@pytest.mark.slow
@pytest.mark.parametrize("code", BY_CODE)
def test_an_example_is_mended_by_repair(code: str) -> None:
    """What is an error is reported as a change of that rule, and afterwards nothing is left to do."""
    names = example_of(code)
    conversation, target = names["conversation"], names["target"]
    repaired = repair(conversation, target)

    changed = {change.code for change in repaired.changes}
    assert changed >= {finding.code for finding in errors(check(conversation, target))}
    assert not errors(check(repaired.conversation, target))
    assert repair(repaired.conversation, target) == type(repaired)(repaired.conversation, ())


@pytest.mark.slow
@pytest.mark.parametrize("code", [code for code, rule in BY_CODE.items() if rule.is_eased])
def test_a_fault_that_the_dialect_corrects_itself_is_a_warning(code: str) -> None:
    """The same history, read as if from elsewhere: the dialect maps, moves and leaves out by itself (OP-057)."""
    names = example_of(code)
    told: Conversation = names["conversation"]
    foreign = Conversation(
        message.model_copy(update={"metadata": released(message.metadata, names["target"])}) for message in told
    )
    assert not errors(check(foreign, names["target"]), code)

    written = encode(foreign, names["target"]).value
    assert not errors(check(_decoded(written, names["target"]), names["target"]), code)


def _decoded(written: object, target: str) -> Conversation:
    from antiphon import decode

    return decode(written, target)


def test_answers_are_of_targets_that_the_rule_is_for() -> None:
    for rule in BY_CODE.values():
        assert rule.answers.keys() <= set(rule.targets or TARGETS), rule.code
        assert set(rule.targets) <= TARGETS.keys(), rule.code


def test_a_fault_that_cannot_be_repaired_is_never_an_error() -> None:
    """So `check` finds no error in the output of `repair`."""
    assert all(rule.severity == "warning" for rule in BY_CODE.values() if rule.mend is None)

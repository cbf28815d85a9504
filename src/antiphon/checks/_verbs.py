"""The verbs: `check` reports the problems of a conversation, `repair` fixes those that are refused. Both use `RULES`."""

from __future__ import annotations

from antiphon.checks._content import CONTENT
from antiphon.checks._findings import Change, Finding, Repaired, Severity
from antiphon.checks._media import MEDIA
from antiphon.checks._order import ORDER, PAIRING
from antiphon.checks._proofs import PROOFS
from antiphon.checks._request import NAMING, REQUEST
from antiphon.checks._rule import CheckRule, Edits, Trouble
from antiphon.checks._targets import TARGETS, Target
from antiphon.checks._view import View
from antiphon.messages import Conversation, Message, use_limits
from antiphon.messages._arguments import check_each, check_type
from antiphon.messages._settings import NO_LIMITS

# The order of repair: a later rule sees the changes of an earlier one.
RULES: tuple[CheckRule, ...] = (*PAIRING, *PROOFS, *NAMING, *MEDIA, *REQUEST, *CONTENT, *ORDER)


_ROUNDS = 8
"""The maximum number of passes over the rules: content that one rule leaves out may be required by another. No case needed
more than three."""


def check(conversation: Conversation, target: str | None = None) -> list[Finding]:
    """Report the problems of a conversation: for a target, or, without one, for all targets.

    The findings are in the order of the messages, those about the conversation as a whole first.
    """
    view = _view(conversation, target)
    findings = [_finding(rule, trouble, view) for rule in RULES if rule.applies(view.target) for trouble in rule.find(view)]
    return sorted(findings, key=lambda finding: (-1 if finding.position is None else finding.position, finding.code))


def repair(conversation: Conversation, target: str | None = None) -> Repaired:
    """Fix everything that the target refuses, with minimal changes: no content is rewritten, and each change is reported.

    Missing content is added, content that must not be sent is marked and left out by dialects, and misplaced content is moved.
    The repair is deterministic, and a repaired conversation needs no further repair.
    """
    view = _view(conversation, target)
    changes: list[Change] = []
    with use_limits(NO_LIMITS):  # a mark must not make a stored message too large
        for _ in range(_ROUNDS):  # pragma: no branch (it has come to an end before)
            before = len(changes)
            for rule in RULES:
                view = _mended(view, rule, changes)
            if len(changes) == before:
                break
    return Repaired(view.conversation, tuple(changes))


def _view(conversation: Conversation, target: str | None) -> View:
    check_each("a conversation", conversation, Message, "a message of decode()")
    check_type("a target", target, str | None, "'openai'")
    if target is not None and target not in TARGETS:
        raise LookupError(f"no target is called {target!r}; there are {', '.join(TARGETS)}")
    return View(conversation, None if target is None else TARGETS[target])


def _mended(view: View, rule: CheckRule, changes: list[Change]) -> View:
    """Fix all errors of one rule, and report the changes."""
    if rule.mend is None or not rule.applies(view.target):
        return view
    troubles = [trouble for trouble in rule.find(view) if _severity(rule, trouble) == "error"]
    if not troubles:
        return view
    edits = Edits(view, rule.code)
    for trouble in troubles:
        done = rule.mend(view, trouble, edits)
        changes.append(Change(rule.code, _message_id(trouble, view), done))
    return View(edits.conversation(), view.target)


def _severity(rule: CheckRule, trouble: Trouble) -> Severity:
    return trouble.severity or rule.severity


def _message_id(trouble: Trouble, view: View) -> str | None:
    return None if trouble.position is None else view.messages[trouble.position].id


def _finding(rule: CheckRule, trouble: Trouble, view: View) -> Finding:
    severity = _severity(rule, trouble)
    return Finding(
        code=rule.code,
        severity=severity,
        position=trouble.position,
        message_id=_message_id(trouble, view),
        problem=trouble.problem,
        answer=_answer(rule, severity, view.target),
        hint=rule.hint,
    )


def _answer(rule: CheckRule, severity: Severity, target: Target | None) -> str:
    """Return the error message of the target; without a target, that of one which is known to refuse it."""
    if target is None:
        target = next((TARGETS[name] for name in rule.answers), None)
        example = ", for one,"
    else:
        example = ""
    words = rule.answers.get(target.name) if target is not None else None
    if target is None:
        return "No target is known to refuse it."
    if severity == "warning":
        return f"Sent as it is, {target.title}{example} may answer: “{words}”" if words else f"{target.title} may refuse it."
    return f"{target.title}{example} answers: “{words}”" if words else f"{target.title} refuses it."

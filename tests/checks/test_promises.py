"""What `check` and `repair` promise of every history, however broken."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from tests.checks.broken import TARGET_NAMES, cases, short_cases
from tests.strategies import conversations

import antiphon
from antiphon import Conversation, Message, Repaired, check, dumps, encode, loads, repair
from antiphon.checks import TARGETS, is_left_out, projected
from antiphon.checks._findings import ADDED, NAMESPACE

UNITS = {"openai-chat": "messages", "openai-responses": "input", "anthropic-messages": "messages", "gemini": "contents"}
"""Under which key a request has its units."""


def errors(conversation: Conversation, target: str | None) -> list[str]:
    return [str(finding) for finding in check(conversation, target) if finding.severity == "error"]


def said(message: Message) -> bytes:
    """Return the content of a message, without ids and notes about the wire."""
    payload: dict[str, Any] = message.payload.model_dump()
    payload.pop("invocation_id", None)
    for part in payload.get("parts", ()):
        part["metadata"] = {}
        if isinstance(part.get("value"), dict):
            part["value"].pop("cache_control", None)  # a setting, wherever it stands
    return repr((message.policy, message.role_hint_for_llm, message.lane, message.created_at, payload)).encode()


def added(message: Message) -> bool:
    return ADDED in message.metadata.get(NAMESPACE, {})


@pytest.mark.slow
@given(cases)
def test_nothing_is_refused_in_what_is_repaired(case: tuple[str | None, Conversation]) -> None:
    target, conversation = case

    assert not errors(repair(conversation, target).conversation, target)


@pytest.mark.slow
@given(cases)
def test_a_repaired_history_needs_no_repair(case: tuple[str | None, Conversation]) -> None:
    target, conversation = case
    repaired = repair(conversation, target)

    assert repair(repaired.conversation, target) == Repaired(repaired.conversation, ())


@pytest.mark.slow
@given(cases)
def test_a_valid_history_is_left_unchanged(case: tuple[str | None, Conversation]) -> None:
    """No change where there is no error, and a change where there is one."""
    target, conversation = case
    repaired = repair(conversation, target)

    assert bool(repaired.changes) == bool(errors(conversation, target))
    if not repaired.changes:
        assert repaired.conversation is conversation


@pytest.mark.slow
@given(cases)
def test_nothing_that_was_said_is_lost_or_rewritten(case: tuple[str | None, Conversation]) -> None:
    """Every message is still there, saying the same; whatever is new says that it was added."""
    target, conversation = case
    mended = repair(conversation, target).conversation

    before = Counter(map(said, conversation))
    assert Counter(said(message) for message in mended if not added(message)) == before


@pytest.mark.slow
@given(cases)
def test_the_same_history_is_mended_to_the_same_bytes(case: tuple[str | None, Conversation]) -> None:
    """No clock and no chance (G10): also after it was stored and read again."""
    target, conversation = case
    again = loads(dumps(conversation), Conversation)

    assert dumps(repair(again, target).conversation) == dumps(repair(conversation, target).conversation)


@pytest.mark.slow
@given(cases)
def test_left_out_parts_are_not_projected(case: tuple[str | None, Conversation]) -> None:
    target, conversation = case
    mended = repair(conversation, target).conversation
    shown = projected(mended)

    assert not any(is_left_out(message) or any(map(is_left_out, message.parts)) for message in shown)
    assert len(shown) == sum(not is_left_out(message) for message in mended)
    assert errors(shown, target) == []


@pytest.mark.slow
@given(short_cases)
def test_a_repaired_request_is_not_empty_and_begins_with_the_right_role(case: tuple[str, Conversation]) -> None:
    """By what the dialect writes: no request is empty (AP305), and where a user must have the first word, one has (AP401).

    Anthropic accepts a history of its own that begins with an answer: it is written as it was.
    """
    target, conversation = case
    written = encode(repair(conversation, target).conversation, target).value
    units = written if isinstance(written, list) else written.get(UNITS[target], [written])

    assert units
    is_its_own = target == "anthropic-messages" and any(target in message.metadata for message in conversation)
    if TARGETS[target].first_role == "user" and units != [written] and not is_its_own:
        assert units[0]["role"] == "user"


@pytest.mark.slow
@given(cases)
def test_findings_point_at_messages_and_say_what_to_do(case: tuple[str | None, Conversation]) -> None:
    target, conversation = case
    findings = check(conversation, target)

    for finding in findings:
        assert finding.problem
        assert finding.answer.endswith((".", "”"))
        assert finding.hint.endswith(".")
        if finding.position is None:
            assert finding.message_id is None
        else:
            assert conversation[finding.position].id == finding.message_id
    assert [f.position for f in findings if f.position is not None] == sorted(
        f.position for f in findings if f.position is not None
    )


@pytest.mark.slow
@given(conversations)
def test_any_history_at_all_is_checked_and_repaired(conversation: Conversation) -> None:
    """Whatever can be said, with metadata of any form where dialects keep theirs (G21)."""
    for target in TARGET_NAMES:
        assert not errors(repair(conversation, target).conversation, target)


def test_the_verbs_stand_at_the_top_of_the_package() -> None:
    assert antiphon.check is check
    assert antiphon.repair is repair

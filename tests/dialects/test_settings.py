"""Settings of a request in another format: which are carried over, within which range, and what is reported (G3)."""

from typing import Any

import pytest

from antiphon.dialects import Encoded, convert, decode, encode
from antiphon.errors import EncodeError

CHAT, RESPONSES, CLAUDE, GEMINI = "openai-chat", "openai-responses", "anthropic-messages", "gemini"
HELLO = [{"role": "user", "content": "Hello"}]
NEUTRAL: dict[str, dict[str, Any]] = {
    CHAT: {"temperature": 0.5, "max_completion_tokens": 64, "top_p": 0.9, "stop": ["END"]},
    CLAUDE: {"temperature": 0.5, "max_tokens": 64, "top_p": 0.9, "stop_sequences": ["END"]},
    GEMINI: {"generationConfig": {"temperature": 0.5, "maxOutputTokens": 64, "topP": 0.9, "stopSequences": ["END"]}},
}
"""The same settings in each format that has all of them."""
SAID: dict[str, dict[str, Any]] = {
    CHAT: {"messages": HELLO},
    CLAUDE: {"messages": HELLO},
    GEMINI: {"contents": [{"role": "user", "parts": [{"text": "Hello"}]}]},
    RESPONSES: {"input": HELLO},
}


def both(body: dict[str, Any], source: str, target: str, **options: Any) -> Encoded:
    """Encode what was decoded, and see that `convert` gives the same."""
    encoded = encode(decode(body, source), target, **options)
    assert convert(body, source=source, target=target, **options) == encoded
    return encoded


def reasons(encoded: Encoded) -> list[tuple[str, str]]:
    return [(loss.what, loss.reason) for loss in encoded.losses if loss.what in ("settings", "model")]


@pytest.mark.parametrize("target", NEUTRAL)
@pytest.mark.parametrize("source", NEUTRAL)
def test_the_neutral_settings_mean_the_same_in_every_format(source: str, target: str) -> None:
    encoded = both({**SAID[source], **NEUTRAL[source]}, source, target)

    assert encoded.value == {**SAID[target], **NEUTRAL[target]}
    assert encoded.losses == ()


def test_a_text_in_bytes_keeps_its_settings_too() -> None:
    """`convert` has a quicker way for bytes."""
    data = b'{"messages": [{"role": "user", "content": "Hello"}], "temperature": 0, "seed": 7}'

    encoded = convert(data, source=CHAT, target=CLAUDE)

    assert encoded.value == {"messages": HELLO, "temperature": 0}
    assert reasons(encoded) == [("settings", "settings of a request are not carried over: seed")]


@pytest.mark.parametrize(
    ("settings", "target", "written", "reason"),
    [
        ({"temperature": 1.7}, CLAUDE, {"temperature": 1}, "temperature 1.7 is written as 1: anthropic-messages takes 0 to 1"),
        ({"temperature": 0}, CLAUDE, {"temperature": 0}, None),
        ({"temperature": 1.7}, RESPONSES, {"temperature": 1.7}, None),
        (
            {"max_tokens": 5},
            RESPONSES,
            {"max_output_tokens": 16},
            "max_tokens 5 is written as 16: openai-responses takes at least 16",
        ),
        ({"stop": "END"}, CLAUDE, {"stop_sequences": ["END"]}, None),
        ({"stop": "END"}, RESPONSES, {}, "openai-responses has no stop: stop is not carried over"),
        (
            {"stop": ["\n", "END"]},
            CLAUDE,
            {"stop_sequences": ["END"]},
            "anthropic-messages takes no blank stop sequences: 1 of 2 are carried over",
        ),
        ({"stop": ["\n"]}, CLAUDE, {}, "anthropic-messages takes no blank stop sequences: 0 of 1 are carried over"),
        (
            {"stop": list("abcdef")},
            GEMINI,
            {"generationConfig": {"stopSequences": list("abcde")}},
            "gemini takes at most 5 stop sequences: 5 of 6 are carried over",
        ),
        ({"max_tokens": 9, "max_completion_tokens": 9}, CLAUDE, {"max_tokens": 9}, None),
        (
            {"max_tokens": 8, "max_completion_tokens": 9},
            CLAUDE,
            {"max_tokens": 9},
            "settings of a request are not carried over: max_tokens",
        ),
        ({"temperature": "warm"}, CLAUDE, {}, "settings of a request are not carried over: temperature"),
        ({"temperature": True, "stop": [1]}, CLAUDE, {}, "settings of a request are not carried over: stop, temperature"),
        ({"temperature": None, "stop": [], "stream": False}, CLAUDE, {}, None),
        ({"store": False, "n": 0}, CLAUDE, {}, "settings of a request are not carried over: n, store"),
        ({"temperature": 1}, "atlas", None, "settings of a request are not carried over: temperature"),
        ({"temperature": 1}, "pydantic-ai", None, "settings of a request are not carried over: temperature"),
    ],
)
def test_a_setting_is_within_the_range_of_the_target_and_a_change_is_reported(
    settings: dict[str, Any], target: str, written: dict[str, Any] | None, reason: str | None
) -> None:
    encoded = both({**SAID[CHAT], **settings}, CHAT, target)

    if written is not None:
        assert encoded.value == {**SAID[target], **written}
    assert reasons(encoded) == ([] if reason is None else [("settings", reason)])


def test_both_spellings_of_gemini_are_read_and_its_own_settings_are_named_by_their_path() -> None:
    config = {"max_output_tokens": 9, "topP": 0.5, "thinking_config": {"thinking_budget": 0}}

    encoded = both({**SAID[GEMINI], "generation_config": config, "safetySettings": [{}]}, GEMINI, CHAT)

    assert encoded.value == {**SAID[CHAT], "max_completion_tokens": 9, "top_p": 0.5}
    left = "generation_config.thinking_config, safetySettings"
    assert reasons(encoded) == [("settings", f"settings of a request are not carried over: {left}")]


@pytest.mark.parametrize("target", [CHAT, RESPONSES, CLAUDE])
def test_a_model_is_lost_unless_one_is_named(target: str) -> None:
    body = {**SAID[GEMINI], "model": "gemini-x"}

    silent, named = both(body, GEMINI, target), both(body, GEMINI, target, model="other")

    assert "model" not in silent.value
    assert reasons(silent) == [("model", f"'gemini-x' is a model of gemini; name one for {target}")]
    assert (named.value["model"], named.losses) == ("other", ())
    with pytest.raises(EncodeError, match="'gemini-x' is a model of gemini"):
        encode(decode(body, GEMINI), target, losses="raise")


def test_gemini_has_the_model_in_the_address_of_a_request() -> None:
    named = both({**SAID[CHAT], "model": "gpt"}, CHAT, GEMINI, model="gemini-x")

    assert (named.value, named.losses) == (SAID[GEMINI], ())


@pytest.mark.parametrize("body", [{**SAID[CHAT], "model": "gpt", "seed": 7}, HELLO])
def test_a_named_model_replaces_that_of_the_same_format(body: Any) -> None:
    encoded = encode(decode(body, CHAT), CHAT, model="other")

    assert encoded.value == {**(body if isinstance(body, dict) else SAID[CHAT]), "model": "other"}
    assert encoded.losses == ()


def test_a_format_without_requests_has_no_model() -> None:
    with pytest.raises(TypeError, match="pydantic-ai has no option 'model'"):
        encode(decode(HELLO, CHAT), "pydantic-ai", model="other")


def test_facts_of_an_answer_are_not_settings() -> None:
    answer = {"object": "chat.completion", "model": "gpt", "choices": [{"message": {"role": "assistant", "content": "Hi"}}]}

    assert reasons(both(answer, CHAT, RESPONSES)) == []

"""The settings of a request that every provider has, under its own names: one table by format, read in both directions.

Temperature, the maximum number of output tokens, top_p and stop sequences mean the same everywhere. So a request that is
converted keeps them, within the range that the target accepts. A model belongs to a provider: it is written only if the caller
names one for the target. All other settings are specific to the provider, and are reported as lost.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

from antiphon.messages import Conversation, thaw
from antiphon.messages._json_values import plain

MODEL: Final = "model"
_STOP: Final = "stop"
_CONVERSATION: Final = ("functions", "tools", "input", "contents", "systemInstruction", "system_instruction")
"""Keys that a dialect keeps for the conversation itself and its tools; these are compared elsewhere."""
_NOTHING: Final[tuple[object, ...]] = (None, "", {}, [])


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting of a format: its key, and the values that the format accepts."""

    keys: tuple[str, ...]
    """The key, and its other spellings; the first is written."""
    least: int = 0
    most: int | None = None
    """The largest value; for stop sequences, the largest number of them."""
    blank: bool = True
    """Whether a stop sequence may be white space only."""


@dataclass(frozen=True, slots=True)
class RequestFormat:
    """The neutral settings of a format of requests."""

    settings: Mapping[str, Setting]
    inside: tuple[str, ...] = ()
    """The key of the object that holds them, and its other spelling; empty: the request itself."""
    has_model: bool = True
    """Whether a body names the model; otherwise the address of the request does."""


_FORMATS: Final[Mapping[str, RequestFormat]] = {
    "openai-chat": RequestFormat(
        {
            "temperature": Setting(("temperature",), most=2),
            "max_tokens": Setting(("max_completion_tokens", "max_tokens"), least=1),
            "top_p": Setting(("top_p",), most=1),
            _STOP: Setting(("stop",), most=4),
        }
    ),
    "openai-responses": RequestFormat(
        {
            "temperature": Setting(("temperature",), most=2),
            "max_tokens": Setting(("max_output_tokens",), least=16),
            "top_p": Setting(("top_p",), most=1),
        }
    ),
    "anthropic-messages": RequestFormat(
        {
            "temperature": Setting(("temperature",), most=1),
            "max_tokens": Setting(("max_tokens",), least=1),
            "top_p": Setting(("top_p",), most=1),
            _STOP: Setting(("stop_sequences",), blank=False),
        }
    ),
    "gemini": RequestFormat(
        {
            "temperature": Setting(("temperature",), most=2),
            "max_tokens": Setting(("maxOutputTokens", "max_output_tokens"), least=1),
            "top_p": Setting(("topP", "top_p"), most=1),
            _STOP: Setting(("stopSequences", "stop_sequences"), most=5),
        },
        inside=("generationConfig", "generation_config"),
        has_model=False,
    ),
}


def carried(conversation: Conversation, target: str, model: str | None = None) -> dict[str, Any]:
    """Return the settings to write beside a conversation: those of another format's request, and the model if one is named."""
    form = _FORMATS.get(target)
    if form is None:
        return {}
    written: dict[str, Any] = {MODEL: model} if model is not None and form.has_model else {}
    for name, rest in _requests(conversation, target):
        settings = _fitting(_read(name, rest)[0], target)[0]
        if settings and target not in conversation.metadata:
            return {**written, **({form.inside[0]: settings} if form.inside else settings)}
    return written


def uncarried(conversation: Conversation, target: str, model: str | None = None) -> Iterator[tuple[str, str]]:
    """Yield the losses of the settings of other formats' requests: `model` or `settings`, and the reason."""
    for name, rest in _requests(conversation, target):
        neutral, specific = _read(name, rest)
        if model is None and (source_model := rest.get(MODEL)) not in _NOTHING:
            yield MODEL, f"{source_model!r} is a model of {name}; name one for {target}"
        if target in _FORMATS and target not in conversation.metadata:
            yield from (("settings", reason) for reason in _fitting(neutral, target)[1])
        else:
            specific += [setting.key for setting in neutral.values()]
        if specific:
            yield "settings", f"settings of a request are not carried over: {', '.join(sorted(specific))}"


@dataclass(frozen=True, slots=True)
class _Neutral:
    """A neutral setting of a request."""

    key: str
    """The key as the request spells it, for errors."""
    value: Any


def _requests(conversation: Conversation, target: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the other fields of each request that the conversation was read from, except one of the target's own format.

    The other fields of a response are facts about an answer, not settings.
    """
    for name, notes in plain(conversation.metadata).items():
        if name != target and notes.get("shape") == "request" and notes.get("rest"):
            yield name, cast("dict[str, Any]", thaw(notes["rest"]))


def _read(name: str, rest: Mapping[str, Any]) -> tuple[dict[str, _Neutral], list[str]]:
    """Return the neutral settings of a request, and the keys of its provider-specific ones; the model is neither."""
    form = _FORMATS.get(name, RequestFormat({}))
    outer = next((key for key in form.inside if isinstance(rest.get(key), dict)), None)
    fields = rest if outer is None else {**rest, **{f"{outer}.{key}": value for key, value in rest[outer].items()}}
    prefix = "" if outer is None else f"{outer}."
    neutral: dict[str, _Neutral] = {}
    handled = (*_CONVERSATION, MODEL, outer)
    # A setting without an effect is empty, or equals the default of every format.
    effective = [key for key, value in fields.items() if value not in _NOTHING and (key != "stream" or value is not False)]
    specific = [key for key in effective if key not in handled]
    for setting, accepted in form.settings.items() if outer is not None or not form.inside else ():
        for key in (f"{prefix}{spelling}" for spelling in accepted.keys):
            value = _valid(setting, fields.get(key))
            # A second spelling with another value stays among the provider-specific settings, and is reported.
            if key in specific and value is not None and (setting not in neutral or neutral[setting].value == value):
                neutral.setdefault(setting, _Neutral(key, value))
                specific.remove(key)
    return neutral, specific


def _valid(setting: str, value: Any) -> Any:
    """Return the value of a setting, stop sequences as a list; None if it has the wrong type."""
    if setting == _STOP:
        listed = [value] if isinstance(value, str) else value
        is_valid = isinstance(listed, list) and all(isinstance(text, str) for text in cast("list[Any]", listed))
        return cast("list[str]", listed) if is_valid else None
    kinds = (int,) if setting == "max_tokens" else (int, float)
    return value if isinstance(value, kinds) and not isinstance(value, bool) else None


def _fitting(neutral: Mapping[str, _Neutral], target: str) -> tuple[dict[str, Any], list[str]]:
    """Return the neutral settings as a format writes them, within its range, and the changes that this made."""
    written: dict[str, Any] = {}
    changed: list[str] = []
    for setting, source in neutral.items():
        accepted = _FORMATS[target].settings.get(setting)
        if accepted is None:
            changed.append(f"{target} has no {setting}: {source.key} is not carried over")
        elif setting == _STOP:
            texts = [text for text in source.value if accepted.blank or text.strip()][: accepted.most]
            written |= {accepted.keys[0]: texts} if texts else {}
            if len(texts) < len(source.value):
                limit = "no blank stop sequences" if accepted.most is None else f"at most {accepted.most} stop sequences"
                changed.append(f"{target} takes {limit}: {len(texts)} of {len(source.value)} are carried over")
        else:
            value = max(accepted.least, source.value if accepted.most is None else min(accepted.most, source.value))
            written[accepted.keys[0]] = value
            if value != source.value:
                limits = f"at least {accepted.least}" if accepted.most is None else f"{accepted.least} to {accepted.most}"
                changed.append(f"{source.key} {source.value} is written as {value}: {target} takes {limits}")
    return written, changed

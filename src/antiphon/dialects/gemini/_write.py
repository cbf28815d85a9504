"""Writes contents: an utterance of the model with its calls, all results of its calls, or a user's message.

The newest models refuse a call without the signature that they gave it. For calls of other models there is a documented
placeholder, on the first call of each step. The service checks only the current turn. Later messages decide which turn that
is, so the placeholder is on every step, and a longer history begins like a shorter one.

The outcome of a call is an object. A result that is an object without the keys `output` and `error` is written unchanged
(`error: null` is no error, and is allowed); any other result as `{"output": …}`. An error is written as
`{"error": "Type: message"}`, with its details beside it: the keys of an object, or `output`.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping, Sequence
from typing import Any, cast

from antiphon.checks._view import PLACEHOLDER
from antiphon.dialects._content import (
    INSTRUCTION,
    arguments_object,
    described,
    file_id,
    json_text,
    mime_of,
    split_data_url,
    text_of,
)
from antiphon.dialects._reading import as_object, fresh, notes_of
from antiphon.dialects._writing import BodyWriting
from antiphon.dialects.gemini._read import FILE, LOCATED, SIGNATURE, is_itself, says_error
from antiphon.dialects.gemini._wire import MODIFIERS, NAME, look, proof, respelled
from antiphon.messages import (
    DataPart,
    ForeignPart,
    MediaPart,
    Message,
    OptionCallPayload,
    OptionResultPayload,
    Part,
    PartsPayload,
    ReasoningPart,
    TextPart,
    thaw,
)
from antiphon.messages._unchecked import EMPTY

OPTIONS = frozenset({"media_labels", "model"})
STAND_IN = b64encode(b"skip_thought_signature_validator").decode()
ROLES = {"assistant": "model", "user": "user"}
_CALLED = "called"
"""The key in `memory` of the written option names, by invocation: a response has the name of its call."""
_UNNAMED = "calls without an id"
"""The key in `memory` of the calls without an id, each with its number."""


def before(previous: Sequence[Message] | None, group: Sequence[Message], writing: BodyWriting) -> dict[str, object] | None:
    """Return a user's content where the format requires one: at the beginning, and between text of the model and a call."""
    if previous is not None and _role(previous, writing) == "user":
        return None
    if _role(group, writing) == "user":
        return None
    if previous is None or any(type(message.payload) is OptionCallPayload for message in group):
        return {"role": "user", "parts": [{"text": PLACEHOLDER}]}
    return None


def invocation_in(part: dict[str, object]) -> object:
    """Return the invocation of a part that is a call or a response, if it has an id."""
    contents = as_object(look(part, "functionCall")) or as_object(look(part, "functionResponse")) or {}
    return contents.get("id")


def write(group: Sequence[Message], writing: BodyWriting) -> list[dict[str, Any]]:
    """Write messages that belong together as one content; if they have no content, as none."""
    role = _role(group, writing)
    parts: list[dict[str, object]] = []
    is_first = True
    for message in _in_order(group, writing) if _UNNAMED in writing.memory and len(group) > 1 else group:
        payload = message.payload
        if type(payload) is PartsPayload:
            parts += _parts(message, payload.parts, role, writing)
        elif type(payload) is OptionCallPayload:
            parts.append(_call(message, payload, writing, is_first=is_first))
            is_first = False
        else:
            parts.append(_answer(message, cast("OptionResultPayload", payload), writing))
    if not parts and (group[0].parts or not writing.is_native(group[0])):
        return []
    return [{"role": role, "parts": parts}]


def write_instructions(messages: Sequence[Message], writing: BodyWriting) -> dict[str, object] | None:
    """Write the content for instructions; none if they are empty."""
    parts = [part for message in messages for part in _parts(message, message.parts, "system", writing)]
    return {"parts": parts} if parts or writing.is_native(messages[0]) else None


def _role(group: Sequence[Message], writing: BodyWriting) -> str:
    """Return the role of the content. A call is always the model's, even if its text is another agent's."""
    if len(group) > 1 and any(type(message.payload) is OptionCallPayload for message in group):
        return "model"
    return ROLES.get(writing.role(group[0]), "user")


# ---------------------------------------------------------------- parts


def _parts(message: Message, parts: Sequence[Part], role: str, writing: BodyWriting) -> list[dict[str, object]]:
    is_native = writing.is_native(message)
    is_own = ROLES.get(str(message.role_hint_for_llm), role) == role
    written: list[dict[str, object]] = []
    for part in writing.labelled(parts) if role == "user" else parts:
        shown = _text(part, is_native, is_own) if type(part) is TextPart else _part(part, role, is_native, is_own)
        if shown is not None:
            written.append(shown)
    is_instruction = role == "user" and message.role_hint_for_llm != "user" and writing.role(message) == "system"
    return _marked(written) if is_instruction and written else written


def _marked(written: list[dict[str, object]]) -> list[dict[str, object]]:
    first = written[0].get("text", "")
    return [{"text": f"{INSTRUCTION}{first}"}, *(written[1:] if first else written)]


def _text(part: TextPart, is_native: bool, is_own: bool) -> dict[str, Any] | None:
    """Write a text; an empty text only if the original had one, or to hold a signature."""
    if part.__dict__["metadata"] is EMPTY:
        return {"text": part.text} if part.text or is_native else None
    notes: Mapping[str, object] = notes_of(part, NAME) if is_own else {}
    return _noted({"text": part.text}, notes) if part.text or is_native or "thoughtSignature" in notes else None


def _part(part: Part, role: str, is_native: bool, is_own: bool) -> dict[str, Any] | None:
    """Write a part; None if it cannot be written, such as thoughts and foreign parts of another provider."""
    if type(part) is MediaPart:
        is_taken = is_native or role != "system"
        return (_write_medium(part, is_own=is_own) if is_taken else None) or {"text": described(part)}
    if type(part) is DataPart:
        return {"text": text} if (text := text_of(part)) else None
    if type(part) is ReasoningPart:
        return _thought(part) if is_own else None
    return _own(cast("ForeignPart", part)) if is_own else None


def _noted(written: dict[str, Any], notes: Mapping[str, Any]) -> dict[str, Any]:
    """Return a part with its signature, in the original spelling."""
    if not notes:
        return written
    if "thoughtSignature" in notes:
        written["thoughtSignature"] = proof(notes["thoughtSignature"])
    return respelled(written, notes["snake"]) if "snake" in notes else written


def _thought(part: ReasoningPart) -> dict[str, Any] | None:
    """Write a thought of this provider's model. Thoughts and signatures of other models are not written."""
    if NAME not in part.metadata:
        return None
    written: dict[str, object] = {"text": part.text, "thought": True}
    if part.signature is not None:
        written["thoughtSignature"] = part.signature
    return _noted(written, notes_of(part, NAME))


def _own(part: ForeignPart) -> dict[str, object] | None:
    return as_object(thaw(part.value)) if part.dialect == NAME else None


# ---------------------------------------------------------------- calls and results


def _call(message: Message, call: OptionCallPayload, writing: BodyWriting, *, is_first: bool) -> dict[str, object]:
    contents: dict[str, Any] = {"name": writing.aliases.option(call.option_name), "args": arguments_object(call)}
    writing.memory.setdefault(_CALLED, {})[call.invocation_id] = contents["name"]
    written: dict[str, Any] = {"functionCall": contents}
    notes = writing.notes(message)
    if notes.get("no_id"):
        unnamed = writing.memory.setdefault(_UNNAMED, {})
        unnamed[call.invocation_id] = len(unnamed)
    else:
        contents["id"] = writing.aliases.invocation(message)
    if is_first and not writing.is_native(message):
        written["thoughtSignature"] = STAND_IN
    return _noted(written, notes)


def _in_order(group: Sequence[Message], writing: BodyWriting) -> Sequence[Message]:
    """Return the results of calls without an id, by function, in the order of the calls: the order pairs them."""
    unnamed: dict[str, int] = writing.memory[_UNNAMED]
    places: dict[str, list[int]] = {}
    for place, message in enumerate(group):
        if type(message.payload) is OptionResultPayload and message.payload.invocation_id in unnamed:
            places.setdefault(_name(message.payload, writing), []).append(place)
    ordered = list(group)
    for same in places.values():
        called = sorted(same, key=lambda place: unnamed[str(group[place].invocation_id)])
        for place, origin in zip(same, called, strict=True):
            ordered[place] = group[origin]
    return ordered


def _answer(message: Message, outcome: OptionResultPayload, writing: BodyWriting) -> dict[str, Any]:
    words: list[str] = []
    media: list[dict[str, Any]] = []
    for part in outcome.parts:
        _show(part, words, media)
    notes = writing.notes(message)
    response = _write_outcome(outcome, words, notes.get("form"))
    contents: dict[str, Any] = {"name": _name(outcome, writing), "response": response}
    if outcome.invocation_id not in writing.memory.get(_UNNAMED, ()) and not notes.get("no_id"):
        contents["id"] = writing.aliases.invocation(message)
    if media:
        contents["parts"] = media
    return _noted({"functionResponse": contents}, notes)


def _name(outcome: OptionResultPayload, writing: BodyWriting) -> str:
    """Return the name of a response: that of its call, by which the service pairs them; without a call, its own."""
    called: dict[str, str] = writing.memory.get(_CALLED, {})
    return called.get(outcome.invocation_id) or writing.aliases.option(outcome.option_name)


def _show(part: Part, words: list[str], media: list[dict[str, object]]) -> None:
    """Put a part of a result in its place: media beside the object, text into it."""
    if type(part) is TextPart or type(part) is DataPart:
        words += [text] if (text := text_of(part)) else []
    elif type(part) is MediaPart:
        shown = _write_medium(part)
        if shown is None:
            words.append(described(part))
        else:
            media.append(shown)
    elif type(part) is ForeignPart and (foreign := _own(part)) is not None:
        media.append(foreign)


# ---------------------------------------------------------------- media

_TO_URL_SAFE = str.maketrans("+/", "-_")


def _write_medium(part: MediaPart, *, is_own: bool = True) -> dict[str, Any] | None:
    """Return the part for a medium; None if it cannot be written. A signature goes only to its own provider (`is_own`)."""
    notes = notes_of(part, NAME)
    contents: dict[str, Any] = {"mimeType": mime_of(part)}
    if (split := split_data_url(part.url)) is not None:
        contents["data"] = split[1].translate(_TO_URL_SAFE) if notes.get("urlSafe") else split[1]
        written: dict[str, Any] = {"inlineData": contents}
    elif (uri := part.url if LOCATED.match(part.url) else file_id(part.url, FILE)) is not None:
        contents["fileUri"] = uri
        written = {"fileData": contents}
    else:
        return None
    if notes:
        if "displayName" in notes:
            contents["displayName"] = notes["displayName"]
        written |= {key: thaw(notes[key]) for key in MODIFIERS if key in notes and (is_own or key != SIGNATURE)}
        if isinstance(signature := written.get(SIGNATURE), str):
            written[SIGNATURE] = proof(signature)
        if "snake" in notes:
            written = respelled(written, notes["snake"])
    return written


# ---------------------------------------------------------------- outcomes

_ERROR = "Error"
"""The type of an error without a type, and the message of an error without a message."""


def _write_outcome(outcome: OptionResultPayload, words: list[str], form: str | None) -> dict[str, object]:
    """Write the result of a call. Its text is added to the output."""
    result = fresh(outcome, "result")
    if words:
        result = "\n".join([*([] if result is None else [json_text(result)]), *words])
    if not outcome.is_error:
        return _laid_out(result, form, is_error=False)
    message = str(outcome.error_message)
    words_of_error = message or _ERROR if outcome.error_type == _ERROR else f"{outcome.error_type}: {message}"
    return {"error": words_of_error, **({} if result is None else _laid_out(result, form, is_error=True))}


def _laid_out(result: object, form: str | None, *, is_error: bool) -> dict[str, object]:
    fields = as_object(result)
    if fields is None or form == "output":
        return {"output": result}
    is_plain = fields.keys() != {"output"} and not says_error(fields.get("error")) and not (is_error and "error" in fields)
    return fields if is_itself(fields, is_error=is_error) or (form == "itself" and is_plain) else {"output": result}

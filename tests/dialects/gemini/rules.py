"""What the service refuses that its types allow, as sentences about a request body.

Written from the provider's documentation and error texts, and from nothing in the dialect: it is the other opinion.
"""

import re
from base64 import b64decode
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

__all__ = ["refusals"]

_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_.:-]{0,127}")
_DATA = {"text", "inlineData", "fileData", "functionCall", "functionResponse"}
"""What may come from elsewhere."""


def refusals(body: Any) -> list[str]:
    """Return why the service would refuse a request that came from elsewhere, as far as can be told by looking at it."""
    return [*_of_roles(body), *_of_parts(body), *_of_turns(body), *_of_signatures(body), *_of_names(body)]


def _held(content: dict[str, Any], key: str) -> list[dict[str, Any]]:
    return [part[key] for part in content["parts"] if key in part]


def _of_roles(body: Any) -> Iterator[str]:
    roles = [content.get("role") for content in body["contents"]]
    if roles and roles[0] != "user":
        yield "the first content is not the user's"
    if set(roles) - {"user", "model"}:
        yield "Please use a valid role: user, model."


def _of_parts(body: Any) -> Iterator[str]:
    for content in (*body["contents"], body.get("systemInstruction", {"parts": [{"text": "x"}]})):
        if not content["parts"]:
            yield "contents.parts must not be empty"
        for part in content["parts"]:
            if len(part.keys() & _DATA) != 1:
                yield "required oneof field 'data' must have one initialized field"
            if part.get("text") == "":
                yield "it has an empty text parameter"
            if part.get("thought"):
                yield "a thought of another model"
    for part in body.get("systemInstruction", {"parts": []})["parts"]:
        if "text" not in part:
            yield "instructions are text"


def _of_turns(body: Any) -> Iterator[str]:
    for before, content in pairwise([{"role": "user", "parts": []}, *body["contents"], {"role": "user", "parts": []}]):
        called, answered = _held(before, "functionCall"), _held(content, "functionResponse")
        if _held(content, "functionCall") and before["role"] != "user":
            yield "function call turn comes immediately after a user turn or after a function response turn"
        if _held(content, "functionCall") and content["role"] != "model":
            yield "a function call is the model's"
        if answered and content["role"] != "user":
            yield "a function response is the user's"
        if answered and not called:
            yield "function response turn comes immediately after a function call turn"
        if sorted((each["id"], each["name"]) for each in called) != sorted((each["id"], each["name"]) for each in answered):
            yield "the number of function response parts is equal to the number of function call parts"
        for response in answered:
            if not isinstance(response["response"], dict) or response["response"].get("error") == "":
                yield "a response must be an object, and an error say something"


def _of_signatures(body: Any) -> Iterator[str]:
    for content in body["contents"]:
        signed = [part.get("thoughtSignature") for part in content["parts"] if "functionCall" in part]
        if signed and (not signed[0] or b64decode(signed[0]) != b"skip_thought_signature_validator"):
            yield "Function call is missing a thought_signature in functionCall parts."
        if any(signed[1:]) or any("thoughtSignature" in part for part in content["parts"] if "functionCall" not in part):
            yield "Invalid thought signature"


def _of_names(body: Any) -> Iterator[str]:
    declared = [each for tool in body.get("tools", []) for each in tool["functionDeclarations"]]
    called = [
        each for content in body["contents"] for key in ("functionCall", "functionResponse") for each in _held(content, key)
    ]
    for each in (*declared, *called):
        if not _NAME.fullmatch(each["name"]):
            yield f"Invalid function name {each['name']!r}"

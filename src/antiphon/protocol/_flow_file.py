"""Flows as JSON, so that one can be declared in a file and judge threads without any code.

    {"name": "greeting", "about": "Two greet each other.", "roles": {"host": "hotel"}, "pattern": {"sequence": [
        {"from": "guest", "to": "host", "says": "HELLO"},
        {"maybe": [{"from": "host", "to": "guest", "says": "said"}]}]}}

A pattern is a step; or `sequence`, `choice`, `maybe` or `repeat` (with `least`) of patterns.
"""

from __future__ import annotations

from typing import Any, cast

from antiphon.protocol._automaton import Choice, Flow, Pattern, Repeat, Sequence, Step, choice, maybe, repeat, sequence

__all__ = ["flow_data", "read_flow"]

_PATTERN = "a step with from, to and says, or one of sequence, choice, maybe and repeat with a list"


def read_flow(data: Any) -> Flow:
    """Return the flow that JSON declares.

    Raises:
        ValueError: it declares none; the text says where.
    """
    match data:
        case {"name": str(name), "pattern": pattern, **more} if more.keys() <= {"about", "roles"}:
            about: Any = more.get("about", "")
            roles: Any = more.get("roles", {})
        case _:
            raise ValueError("a flow is an object with name and pattern, and perhaps about and roles")
    bound = _fields(roles, "roles")
    if not isinstance(about, str) or not all(isinstance(name, str) for _, name in bound):
        raise ValueError("about is a text, and roles an object of texts")
    return Flow(name, about, _pattern(pattern, "pattern"), bound)


def _pattern(value: Any, where: str) -> Pattern:
    match value:
        case {"from": str(sender), "to": str(receiver), "says": str(says), **more} if more.keys() <= {"where"}:
            return Step(sender, receiver, says, _fields(more.get("where", {}), f"{where}.where"))
        case {"sequence": parts, **more} if not more:
            return sequence(*_patterns(parts, f"{where}.sequence"))
        case {"choice": parts, **more} if not more:
            return choice(*_patterns(parts, f"{where}.choice"))
        case {"maybe": parts, **more} if not more:
            return maybe(*_patterns(parts, f"{where}.maybe"))
        case {"repeat": parts, **more} if more.keys() <= {"least"}:
            least: Any = more.get("least", 0)
            if type(least) is not int or not 0 <= least <= 100:  # noqa: PLR2004 (each is built)
                raise ValueError(f"{where}.least: a whole number from 0 to 100, not {least!r}")
            return repeat(*_patterns(parts, f"{where}.repeat"), least=least)
        case _:
            raise ValueError(f"{where}: a pattern is {_PATTERN}")


def _patterns(values: Any, where: str) -> list[Pattern]:
    if not isinstance(values, list):
        raise ValueError(f"{where}: a list of patterns")  # noqa: TRY004 (data, not code)
    return [_pattern(value, f"{where}[{place}]") for place, value in enumerate(cast("list[Any]", values))]


def _fields(value: Any, where: str) -> tuple[tuple[str, Any], ...]:
    if not isinstance(value, dict):
        raise ValueError(f"{where}: an object")  # noqa: TRY004 (data, not code)
    return tuple(cast("dict[str, Any]", value).items())


def flow_data(flow: Flow) -> dict[str, Any]:
    """Return a flow as the JSON that declares it."""
    data: dict[str, Any] = {"name": flow.name, "about": flow.about, "pattern": _data(flow.pattern)}
    return {**data, "roles": dict(flow.roles)} if flow.roles else data


def _data(pattern: Pattern) -> dict[str, Any]:
    match pattern:
        case Step(sender, receiver, says, where):
            return {"from": sender, "to": receiver, "says": says, **({"where": dict(where)} if where else {})}
        case Sequence(parts):
            return {"sequence": [_data(part) for part in parts]}
        case Choice((Sequence(parts), Sequence(()))):
            return {"maybe": [_data(part) for part in parts]}
        case Choice(parts):
            return {"choice": [_data(part) for part in parts]}
        case Repeat(part, least):
            parts = part.parts if isinstance(part, Sequence) else (part,)
            return {"repeat": [_data(each) for each in parts], **({"least": least} if least else {})}

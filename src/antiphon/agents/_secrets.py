"""Secrets: sensitive values of tool calls, which are passed to the tool and never stored.

A tool of a toolkit names its sensitive arguments. When a model calls it, their values are removed from the model's answer
before the answer is stored, and before the agent sees it: the thread, the next prompt and the history that the agent returns
have `[redacted:sensitive]`. The values are kept in memory while the run is open, and are put back when the tool is started. If
a value appears later in the run (in a tool's result or error, or in a model's answer), it is removed there, too.

So the values are lost with the process. A call that was executed is recorded and is not executed again. A call that has not
started is refused without them: the model gets that error, and may send them again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

from pydantic_ai.exceptions import UserError
from pydantic_ai.tools import ToolDefinition

if TYPE_CHECKING:
    from antiphon.agents._run import LedgerRun

Unit: TypeAlias = dict[str, Any]
"""A request or an answer of Pydantic AI as plain JSON, or a part of one."""

SENSITIVE: Final = "[redacted:sensitive]"
WITHHOLDS: Final = "withholds"
"""The key in a tool's metadata that lists the arguments the toolkit puts back."""
_OWN: Final = "antiphon"
_FEWEST: Final = 4
"""The length of the shortest value that is searched for inside other texts. A shorter one is removed only where it is the
whole text."""
_STRUCTURE: Final = frozenset({"part_kind", "provider_name", "timestamp", "tool_call_id", "tool_kind", "tool_name"})
"""Fields that identify a part of a message, and are never sensitive."""
_REDACTED: Final = re.compile(r"\[redacted:[^\]]*\]")


def is_redacted(value: object) -> bool:
    """Whether a value is the mark of a removed value, removed here or by the ledger."""
    return isinstance(value, str) and _REDACTED.fullmatch(value) is not None


@dataclass(frozen=True)
class SecretArguments:
    """The arguments of tools that are removed from a model's answer."""

    tools: Mapping[str, tuple[frozenset[str], frozenset[str]]]
    """By tool, its sensitive names and all its names. Arguments with unknown names are removed, too."""

    @classmethod
    def of(cls, tools: Iterable[ToolDefinition]) -> SecretArguments:
        """Return the sensitive arguments of the tools of a request.

        Raises:
            UserError: a tool outside of toolkits has sensitive arguments: nothing would put them back.
        """
        found: dict[str, tuple[frozenset[str], frozenset[str]]] = {}
        for tool in tools:
            own = (tool.metadata or {}).get(_OWN)
            said = cast("Unit", own) if isinstance(own, dict) else Unit()
            if names := said.get(WITHHOLDS):
                known = tool.parameters_json_schema.get("properties", {})
                found[tool.name] = frozenset(names), frozenset(known)
            elif said.get("sensitive"):
                raise UserError(
                    f"tool {tool.name!r} has sensitive arguments: give it to the agent in a Toolkit, which keeps them"
                )
        return cls(found)


class Secrets:
    """The sensitive values of a run."""

    def __init__(self) -> None:
        self._calls: dict[tuple[str | None, str | None], Unit] = {}
        """By run of an agent and call, the values by name."""
        self._values: list[Any] = []

    @classmethod
    def of(cls, run: LedgerRun) -> Secrets:
        """Return the object that a run and all its parts share."""
        return run.opened.share(cls)

    # ------------------------------------------------------------ removing values

    def take_out(self, answer: Unit, withholding: SecretArguments, run_id: str | None) -> Unit:
        """Keep the sensitive values of a model's answer, and return the answer without them."""
        if not withholding.tools and not self._values:
            return answer
        parts = [self._part(part, withholding, run_id) for part in answer["parts"]]
        return self.clean_unit({**answer, "parts": parts})

    def clean_unit(self, unit: Unit) -> Unit:
        """Return a request or an answer without the sensitive values."""
        if not self._values:
            return unit
        return {**unit, "parts": [{name: self._field(name, value) for name, value in part.items()} for part in unit["parts"]]}

    def _field(self, name: str, value: Any) -> Any:
        if name in _STRUCTURE:
            return value
        if name == "args" and isinstance(value, str) and (given := _parsed(value)):
            clean = self.clean(given)
            return value if clean == given else json.dumps(clean)  # it stays JSON
        return self.clean(value)

    def _part(self, part: Unit, withholding: SecretArguments, run_id: str | None) -> Unit:
        if part["part_kind"] != "tool-call" or part["tool_name"] not in withholding.tools or part["args"] is None:
            return part
        sensitive, known = withholding.tools[part["tool_name"]]
        given = _parsed(part["args"])
        out = {name: value for name, value in given.items() if name in sensitive or name not in known}
        kept = self._calls[run_id, part.get("tool_call_id")] = {
            name: value for name, value in out.items() if name in sensitive and not is_redacted(value)
        }
        self.remember(kept.values())
        left: Any = {name: SENSITIVE if name in out else value for name, value in given.items()}
        return {**part, "args": json.dumps(left) if isinstance(part["args"], str) else left}

    def remember(self, values: Iterable[Any]) -> None:
        """Remove these values from everything that is cleaned from now on."""
        for value in values:
            self._values += [each for each in _scalars(value) if not is_redacted(each) and each not in self._values]

    def clean(self, value: Any) -> Any:
        """Return a JSON value without the sensitive values."""
        match value:
            case str():
                return self.clean_text(value)
            case dict():
                return {key: self.clean(each) for key, each in cast("dict[str, object]", value).items()}
            case list():
                return [self.clean(each) for each in cast("list[Any]", value)]
            case _:
                return SENSITIVE if any(type(each) is type(value) and each == value for each in self._values) else value

    def clean_text(self, text: str) -> str:
        """Return a text without the sensitive values."""
        for secret in sorted(map(str, self._values), key=len, reverse=True):
            if secret == text:
                return SENSITIVE
            if len(secret) >= _FEWEST:
                text = text.replace(secret, SENSITIVE)
        return text

    # ------------------------------------------------------------ putting values back

    def put_back(self, arguments: dict[str, object], run_id: str | None, call_id: str | None) -> dict[str, object]:
        """Return the arguments of a call with the removed values put back, as far as this process has them."""
        kept = self._calls.get((run_id, call_id), {})
        return {name: kept.get(name, value) if is_redacted(value) else value for name, value in arguments.items()}


def _parsed(args: Any) -> Unit:
    """Return the arguments of a call; empty if they cannot be parsed, because they may contain anything."""
    try:
        given = json.loads(args) if isinstance(args, str) else args
    except ValueError:
        return {}
    return cast("Unit", given) if isinstance(given, dict) else {}


def _scalars(value: Any) -> list[Any]:
    """Return the texts and numbers in a value. Booleans are left out: they are too common to be searched for."""
    match value:
        case dict():
            return [each for item in cast("dict[str, object]", value).values() for each in _scalars(item)]
        case list():
            return [each for item in cast("list[Any]", value) for each in _scalars(item)]
        case None | bool() | "":
            return []
        case _:
            return [value]

"""What is sensitive: given to a tool, and written down nowhere.

A tool of a toolkit names its arguments that are sensitive. When a model calls it, their values are taken out of the model's
answer before that is written down, and before the agent sees it: in the thread, in the next prompt and in the history that
the agent returns stands `[redacted:sensitive]`. The values are kept here, in memory, for as long as the run is at work, and
are put back where the tool is started. Wherever one of them comes up later in the run (in what a tool returns, in what it says
when it fails, in what a model says) it is taken out too.

So a process that ends takes them with it. What was done with them is recorded and is not done again; a call that was not begun
is not begun without them: the model is told, and may give them anew.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast

from pydantic_ai.exceptions import UserError
from pydantic_ai.tools import ToolDefinition

if TYPE_CHECKING:
    from antiphon.agents._run import LedgerRun

SENSITIVE: Final = "[redacted:sensitive]"
WITHHOLDS: Final = "withholds"
"""Where the metadata of a toolkit's tool names the arguments that it puts back itself."""
_OWN: Final = "antiphon"
_FEWEST: Final = 4
"""Characters of the shortest value that is looked for inside of other texts; a shorter one only counts as a whole."""
_STRUCTURE: Final = frozenset({"part_kind", "provider_name", "timestamp", "tool_call_id", "tool_kind", "tool_name"})
"""What says which part of a message it is, and is never sensitive."""
_REDACTED: Final = re.compile(r"\[redacted:[^\]]*\]")


def is_redacted(value: object) -> bool:
    """Whether a value stands for one that was taken out: here, or by the ledger because of its name."""
    return isinstance(value, str) and _REDACTED.fullmatch(value) is not None


@dataclass(frozen=True)
class SecretArguments:
    """Which arguments of which tools are taken out of what a model says."""

    tools: Mapping[str, tuple[frozenset[str], frozenset[str]]]
    """By tool: the names that are sensitive, and all that it has. Whatever it does not have is taken out too."""

    @classmethod
    def of(cls, tools: Iterable[ToolDefinition]) -> SecretArguments:
        """Return what the tools of a request say.

        Raises:
            UserError: a tool that is in no toolkit says that something is sensitive: nobody would put it back.
        """
        found: dict[str, tuple[frozenset[str], frozenset[str]]] = {}
        for tool in tools:
            own = (tool.metadata or {}).get(_OWN)
            said = cast("dict[str, Any]", own) if isinstance(own, dict) else dict[str, Any]()
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
        self._calls: dict[tuple[str | None, str | None], dict[str, Any]] = {}
        """By run of an agent and call, the values by name."""
        self._values: list[Any] = []

    @classmethod
    def of(cls, run: LedgerRun) -> Secrets:
        """Return the one of a run and all its parts."""
        return run.opened.share(cls)

    # ------------------------------------------------------------ out

    def take_out(self, answer: dict[str, Any], withholding: SecretArguments, run_id: str | None) -> dict[str, Any]:
        """Return an answer of a model, as JSON, without what is sensitive."""
        if not withholding.tools and not self._values:
            return answer
        parts = [self._part(part, withholding, run_id) for part in answer["parts"]]
        return self.clean_unit({**answer, "parts": parts})

    def clean_unit(self, unit: dict[str, Any]) -> dict[str, Any]:
        """Return a request or an answer, as JSON, without any of the values that are sensitive."""
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

    def _part(self, part: dict[str, Any], withholding: SecretArguments, run_id: str | None) -> dict[str, Any]:
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
        """Take these values out of whatever is said from now on."""
        for value in values:
            self._values += [each for each in _scalars(value) if not is_redacted(each) and each not in self._values]

    def clean(self, value: Any) -> Any:
        """Return a JSON value without any of the values that are sensitive."""
        match value:
            case str():
                return self.clean_text(value)
            case dict():
                return {key: self.clean(each) for key, each in cast("dict[str, Any]", value).items()}
            case list():
                return [self.clean(each) for each in cast("list[Any]", value)]
            case _:
                return SENSITIVE if any(type(each) is type(value) and each == value for each in self._values) else value

    def clean_text(self, text: str) -> str:
        """Return a text without any of the values that are sensitive."""
        for secret in sorted(map(str, self._values), key=len, reverse=True):
            if secret == text:
                return SENSITIVE
            if len(secret) >= _FEWEST:
                text = text.replace(secret, SENSITIVE)
        return text

    # ------------------------------------------------------------ and back

    def put_back(self, arguments: dict[str, Any], run_id: str | None, call_id: str | None) -> dict[str, Any]:
        """Return the arguments of a call with the values that were taken out of it, as far as they are here."""
        kept = self._calls.get((run_id, call_id), {})
        return {name: kept.get(name, value) if is_redacted(value) else value for name, value in arguments.items()}


def _parsed(args: Any) -> dict[str, Any]:
    """Return the arguments of a call. Of what cannot be read nothing is kept: nobody knows what is in it."""
    try:
        given = json.loads(args) if isinstance(args, str) else args
    except ValueError:
        return {}
    return cast("dict[str, Any]", given) if isinstance(given, dict) else {}


def _scalars(value: Any) -> list[Any]:
    """Return the texts and numbers that a value is made of. A yes or a no is in every second message."""
    match value:
        case dict():
            return [each for item in cast("dict[str, Any]", value).values() for each in _scalars(item)]
        case list():
            return [each for item in cast("list[Any]", value) for each in _scalars(item)]
        case None | bool() | "":
            return []
        case _:
            return [value]

"""Settings of a chain for a model of 135 million parameters: short answers, one tool at a time, a script if it fails.

Such a model copies badly. So a tool is offered only if the question fits it, and its arguments can only be text of the
question: an arithmetic expression, or the whole question as a search.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from pydantic_ai import RunContext, Tool, ToolDefinition

from antiphon.agents.tools import CalculationError, KnowledgeBase, calculate, calculator
from antiphon.patterns.postchain import ChainConfig
from antiphon.protocol import AgentConfig

if TYPE_CHECKING:
    from antiphon.ledger import Ledger

_FEW_TOKENS: Final = 32
"""Of an answer: more takes long, and adds nothing."""
_ARITHMETIC = re.compile(r"[-(.\d][-+*/^%().\d\s]*(?:[+*^]|\s[-/%]\s)[-+*/^%().\d\s]*[.\d)]")
"""Not a date, a range or a version: these have a sign between the numbers, and no space."""
_LONGEST_QUESTION: Final = 200


def for_small_model(ledger: Ledger) -> dict[str, Any]:
    """Return the options of a `PostChain` for it."""
    action = AgentConfig(tools=("calculator", "knowledge_base"), max_tokens=2 * _FEW_TOKENS)
    config = ChainConfig(
        max_tokens=_FEW_TOKENS, found=3, drafts=False, fallback="scripted", attempts=1, phases={"action": action}
    )
    return {"config": config, "tools": [_calculator(), _knowledge_base(ledger)]}


def expressions_in(text: str) -> list[str]:
    """Return the arithmetic expressions in a text."""
    return [found.strip() for found in _ARITHMETIC.findall(text) if _is_expression(found)]


def _is_expression(text: str) -> bool:
    try:
        calculate(text)
    except CalculationError:
        return False
    return True


def _calculator() -> Tool[Any]:
    async def where_there_is_arithmetic(context: RunContext[Any], tool: ToolDefinition) -> ToolDefinition | None:
        found = expressions_in(_question(context))
        return _held_to(tool, "expression", found) if found else None

    tool = calculator()
    tool.prepare = where_there_is_arithmetic
    return tool


def _knowledge_base(ledger: Ledger) -> Tool[Any]:
    async def knowledge_base(query: str) -> list[dict[str, str]]:
        """Search the documents for a question.

        Args:
            query: The question.
        """
        passages = await KnowledgeBase(ledger).search(query, limit=2)
        return [{"id": each.id, "source": each.source, "text": each.text[:300]} for each in passages]

    async def where_there_is_none(context: RunContext[Any], tool: ToolDefinition) -> ToolDefinition | None:
        question = _question(context)
        return None if expressions_in(question) else _held_to(tool, "query", [question[:_LONGEST_QUESTION]])

    return Tool[Any](knowledge_base, prepare=where_there_is_none, metadata={"antiphon": {"effects": "none"}})


def _question(context: RunContext[Any]) -> str:
    """Return the last question: an empty line separates it from earlier turns."""
    said = context.prompt if isinstance(context.prompt, str) else ""
    return said.rpartition("\n\n")[2].strip()


def _held_to(tool: ToolDefinition, name: str, values: list[str]) -> ToolDefinition:
    """Return a tool with one argument limited to some values."""
    schema = tool.parameters_json_schema
    held = {**schema["properties"], name: {"type": "string", "enum": values}}
    return replace(tool, parameters_json_schema={**schema, "properties": held})

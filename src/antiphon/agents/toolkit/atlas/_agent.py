"""An agent of Atlas that can use tools: it answers structured messages, and runs the tools that they ask for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, Unpack

from antiphon.agents.toolkit._tool import ToolSettings
from antiphon.agents.toolkit.atlas._toolkit import AgentToolkit
from antiphon.agents.toolkit.atlas._tools import Tool
from antiphon.dialects.atlas import StructuredMessage
from antiphon.messages import OptionResultPayload, thaw

__all__ = ["Respond", "ToolCapableAgent"]

Respond: TypeAlias = Callable[[StructuredMessage, str], StructuredMessage]
"""Answers a message, given what the agent is to know about itself and its tools. The answer may ask for tools."""

_MOST_ROUNDS = 8


class ToolCapableAgent:
    """An agent with a name, a specialization and what it may use of a toolkit.

    `respond` is its mind, such as a model. Tools that its answer asks for are run, and it is given the results to answer
    again, until it asks for none. Without a mind it runs the tools that a message asks for, and says what came of them.
    """

    def __init__(
        self, worker_id: str, specialization: str, toolkit: AgentToolkit | None = None, respond: Respond | None = None
    ) -> None:
        self.worker_id = worker_id
        self.specialization = specialization
        self.toolkit = toolkit or AgentToolkit()
        self._respond = respond

    def register_tool(self, tool: Tool | Callable[..., Any], **settings: Unpack[ToolSettings]) -> str:
        """Add a tool to the toolkit, and let this agent use it.

        Raises:
            ValueError: there is one of this name.
        """
        name = self.toolkit.register_tool(tool, **settings)
        self.toolkit.grant_permission(self.worker_id, name)
        return name

    @property
    def system_prompt(self) -> str:
        """What the agent is to know about itself, and the tools that it may use now."""
        tools = [f"- {known.name}: {known.description}" for known in self.toolkit.get_tool_descriptions(self.worker_id)]
        listed = "\n\n## Available Tools\n" + "\n".join(tools) if tools else ""
        return f"You are {self.worker_id}. Your specialization: {self.specialization}.{listed}"

    def process_structured_message(self, message: StructuredMessage) -> StructuredMessage:
        """Answer a message. Tools that it asks for are run first, those that the answer asks for after it.

        All calls and results are on the answer. A tool that fails, or may not be used, is a result with an error.
        """
        answer = StructuredMessage.create_response("", message, source_agent=self.worker_id)
        self._run_calls(message, answer)
        if self._respond is None:
            answer.content = _said(answer)
            return answer
        for _ in range(_MOST_ROUNDS):
            said = self._respond(_with_results(message, answer), self.system_prompt)
            answer.content = said.content
            if not said.has_tool_calls:
                break
            self._run_calls(said, answer)
        return answer

    def _run_calls(self, asking: StructuredMessage, answer: StructuredMessage) -> None:
        for call in asking.tool_calls:
            answer.add_tool_call(call["name"], call["arguments"], call["id"])
            payload = self.toolkit.call(self.worker_id, call["name"], call["arguments"], call["id"])
            answer.add_tool_result(**_result(call, payload))


def _result(call: Mapping[str, Any], payload: OptionResultPayload) -> dict[str, Any]:
    made = {"name": call["name"], "call_id": call["id"]}
    if payload.is_error:
        return {**made, "result": None, "status": "error", "error": f"{payload.error_type}: {payload.error_message}"}
    return {**made, "result": thaw(payload.result), "status": "success"}


def _with_results(message: StructuredMessage, answer: StructuredMessage) -> StructuredMessage:
    """Return the message as the mind sees it: with what was called in its course, and what came of it."""
    seen = message.copy()
    seen.tool_calls = answer.tool_calls
    seen.tool_results = answer.tool_results
    return seen


def _said(answer: StructuredMessage) -> str:
    results = answer.tool_results
    lines = [f"{each['name']}: {each['error'] if each['status'] == 'error' else each['result']}" for each in results]
    return "\n".join(lines)

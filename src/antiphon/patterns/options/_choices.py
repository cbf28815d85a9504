"""Choices: what a policy may choose from, and the short way to say what it chooses."""

from __future__ import annotations

from antiphon.messages import Json, Message, OptionCallPayload, PartsPayload, TextPart, Tool, current_port

__all__ = ["Choices"]


class Choices:
    """The options of a policy, at one step."""

    def __init__(self, policy: str, tools: tuple[Tool, ...]) -> None:
        self.policy = policy
        """Who chooses."""
        self.tools = tools
        """The options: name, description, and the schema of the arguments."""

    @property
    def names(self) -> tuple[str, ...]:
        """What there is to choose."""
        return tuple(tool.name for tool in self.tools)

    def call(self, option: str, /, **arguments: Json) -> Message:
        """Return the choice of an option; it runs when the policy has returned it."""
        payload = OptionCallPayload(invocation_id=current_port().new_id(), option_name=option, arguments=arguments)
        return Message(policy=self.policy, payload=payload, role_hint_for_llm="assistant")

    def say(self, text: str) -> Message:
        """Return something to be said beside calls, or as the answer."""
        return Message(policy=self.policy, payload=PartsPayload(parts=(TextPart(text=text),)), role_hint_for_llm="assistant")

"""Delegation: what a program wants one peer to ask another, said in words or by an `agent_call`."""

from __future__ import annotations

from typing import Any

from antiphon.dialects import marsys
from antiphon.patterns.peers._protocol import DelegateToPeer

__all__ = ["delegation"]


def delegation(
    target: str | marsys.Message, request: str | None, caller: str | None, passed: tuple[str, ...]
) -> tuple[str, DelegateToPeer, tuple[str, ...]]:
    """Return who is to ask, what it is told, and what makes this the same as another.

    Raises:
        ValueError: something is not said, or the message is no `agent_call`.
    """
    more: dict[str, Any] = {"context_message_ids": passed} if passed else {}
    if isinstance(target, marsys.Message):
        call = target
        who, name, words = _checked(call, request, caller)
        more |= {"message_id": call.message_id} | ({} if call.task_id is None else {"task_id": call.task_id})
        return who, DelegateToPeer(target=name, request=words, **more), (who, name, words, *passed, call.message_id)
    if request is None or caller is None:
        raise ValueError("say what is asked and who asks: invoke(target, request, caller=…), or give an agent_call")
    return caller, DelegateToPeer(target=target, request=request, **more), (caller, target, request, *passed)


def _checked(call: marsys.Message, request: str | None, caller: str | None) -> tuple[str, str, str]:
    """Return who asks whom what, as an `agent_call` says it."""
    if call.role != "agent_call" or not call.name or not call.text:
        raise ValueError(f"expected an agent_call with a name and a content, not {call.role!r} for {call.name!r}")
    who = call.caller or caller
    if who is None or request is not None or caller not in (None, who):
        raise ValueError("an agent_call says who asks (metadata['caller']) and what: give neither a second time")
    if not isinstance(call.content, str) and any(part.get("type") != "text" for part in call.content):
        raise ValueError("a peer is asked in words; pass on other messages by context_message_ids")
    return who, call.name, call.text

"""The book: what was decided about calls, written down in their threads, and found there again.

A decision is a row before anything follows from it. A program that runs again gets the decision that is there, for the
tool may have been started on its strength; whether it still holds is asked once more when a tool is really started.
"""

from __future__ import annotations

from collections import defaultdict
from hashlib import sha256
from typing import Any, Final

from antiphon.agents._run import LedgerRun
from antiphon.agents.toolkit._call import Call
from antiphon.agents.toolkit._permissions import Grant, Permissions
from antiphon.agents.toolkit._rules import Decision, Verdict
from antiphon.agents.toolkit._schema import canonical
from antiphon.messages import RUNTIME_POLICY, DataPart, Json, JsonObject, Message, PartsPayload, thaw

__all__ = ["Book", "Uses"]

_DECIDED: Final = "TOOL_PERMISSION"
_PERMITTED: Final = "TOOL_PERMISSIONS"


class _Page:
    """What one run has written down."""

    def __init__(self) -> None:
        self.permissions: set[str] = set()
        self.decisions: dict[str, Decision] = {}
        """By the digest of the call, those that wait for a person: such a call comes again."""


class Book:
    """The rows of a run that say what an agent may do and what was decided."""

    def __init__(self, run: LedgerRun) -> None:
        self._run = run
        self._page = run.opened.share(_Page)

    async def recall(self, call: Call) -> Decision | None:
        """Return what was decided about a call before; None: nothing was."""
        if call.digest in self._page.decisions:
            return self._page.decisions[call.digest]
        if not self._run.is_again:
            return None
        rows = await self._run.ledger.by_correlation(_correlation(call), thread_id=self._run.thread_id)
        said = next((data for row in rows if (data := _data(row.message)).get("type") == _DECIDED), None)
        if said is None:
            return None
        verdict: Verdict = said["verdict"]
        return Decision(verdict, str(said["reason"]))

    async def write(self, call: Call, decision: Decision) -> None:
        """Write down what is decided about a call."""
        said = {"type": _DECIDED, "agent": call.agent, "tool": call.tool, "digest": call.digest, **decision.to_json()}
        await self._run.note(_row(said, _correlation(call)), key=_correlation(call))
        if decision.verdict == "ask":
            self._page.decisions[call.digest] = decision

    async def write_permissions(self, agent: str, permissions: Permissions) -> None:
        """Write down what an agent may do, unless that is there already."""
        said: dict[str, Any] = {"type": _PERMITTED, "agent": agent, "changes": permissions.of(agent)}
        name = f"permissions:{sha256(canonical(said).encode()).hexdigest()[:24]}"
        if name in self._page.permissions:
            return
        self._page.permissions.add(name)
        if not await self._run.ledger.by_correlation(name, thread_id=self._run.thread_id):
            await self._run.note(_row(said, name), key=name)


class Uses:
    """How many calls each grant has permitted in each thread; only those are counted that have a number."""

    def __init__(self) -> None:
        self._threads: dict[str | None, dict[str, set[str]]] = {}
        """By thread, by grant: the digests of the calls."""

    async def others(self, run: LedgerRun | None, grants: tuple[Grant, ...], call: Call) -> dict[Grant, int]:
        """Return how many other calls of the thread each grant has permitted."""
        if not any(grant.calls for grant in grants):
            return {}
        counts = await self._of_thread(run)
        return {grant: len(counts[canonical(grant.to_json())] - {call.digest}) for grant in grants if grant.calls}

    def count(self, grant: Grant | None, call: Call) -> None:
        """Count a call that a grant has permitted."""
        if grant is not None and grant.calls:
            self._threads.setdefault(call.thread_id, defaultdict(set))[canonical(grant.to_json())].add(call.digest)

    async def _of_thread(self, run: LedgerRun | None) -> dict[str, set[str]]:
        thread_id = None if run is None else run.thread_id
        if thread_id not in self._threads:
            found: dict[str, set[str]] = defaultdict(set)
            if run is not None:
                async for record in run.ledger.read(run.thread_id):
                    said = _data(record.message)
                    if said.get("type") == _DECIDED and "grant" in said:
                        found[canonical(said["grant"])].add(str(said["digest"]))
            self._threads.setdefault(thread_id, found)
        return self._threads[thread_id]


def _correlation(call: Call) -> str:
    return f"permission:{call.digest}"


def _row(said: dict[str, Json], correlation_id: str) -> Message:
    return Message(policy=RUNTIME_POLICY, payload=PartsPayload(parts=(DataPart(data=said),)), correlation_id=correlation_id)


def _data(message: Message) -> dict[str, Any]:
    """Return what a row of ours says; nothing, of what others have said."""
    if message.lane != "control" or message.policy != RUNTIME_POLICY or not isinstance(message.payload, PartsPayload):
        return {}
    parts = message.payload.parts
    said = parts[0].data if len(parts) == 1 and isinstance(parts[0], DataPart) else None
    return thaw(said) if isinstance(said, JsonObject) else {}

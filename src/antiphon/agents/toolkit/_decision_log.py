"""The decision log: rows of a thread with the decisions on tool calls, and the taint of agents.

A decision is written before anything follows from it. A program that runs again gets the recorded decision, because the tool
may have been started based on it. The guard checks permission and approval once more right before it starts a tool.
"""

from __future__ import annotations

from collections import defaultdict
from hashlib import sha256
from threading import Lock
from typing import Any, Final
from weakref import WeakKeyDictionary, WeakValueDictionary

from antiphon.agents._guards import Cover
from antiphon.agents._run import LedgerRun
from antiphon.agents.durability import guards_of
from antiphon.agents.toolkit._decision import Grant, Permissions, RequestedCall, ToolDecision, Verdict
from antiphon.agents.toolkit._schema import canonical
from antiphon.agents.toolkit.taint import Taint
from antiphon.ledger import Ledger
from antiphon.messages import RUNTIME_POLICY, DataPart, Json, JsonObject, Message, PartsPayload, thaw

_DECIDED: Final = "TOOL_PERMISSION"
_PERMITTED: Final = "TOOL_PERMISSIONS"
_READ: Final = "TOOL_READING"


class _Page:
    """The rows that one run has written so far."""

    def __init__(self) -> None:
        self.permissions: set[str] = set()
        self.decisions: dict[str, ToolDecision] = {}
        """By digest of the call. A call that waits for a person is repeated, and any other call may be repeated under the same
        id."""
        self.readings: set[str] = set()
        """The parts of the run that have written their taint."""


class DecisionLog:
    """Writes the permissions of an agent and the decisions on its calls as rows of a run."""

    def __init__(self, run: LedgerRun) -> None:
        self._run = run
        self._page = run.opened.share(_Page)

    async def recall(self, call: RequestedCall) -> ToolDecision | None:
        """Return the recorded decision on a call; None if there is none."""
        if call.digest in self._page.decisions:
            return self._page.decisions[call.digest]
        if not self._run.is_again:
            return None
        rows = await self._run.ledger.by_correlation(_correlation(call), thread_id=self._run.thread_id)
        said = next((data for row in rows if (data := _data(row.message)).get("type") == _DECIDED), None)
        if said is None:
            return None
        verdict: Verdict = said["verdict"]
        return ToolDecision(verdict, str(said["reason"]))

    async def write(self, call: RequestedCall, decision: ToolDecision) -> None:
        """Write the decision on a call."""
        said = {"type": _DECIDED, "agent": call.agent, "tool": call.tool, "digest": call.digest, **decision.to_json()}
        await self._run.note(_row(said, _correlation(call)), key=_correlation(call))
        self._page.decisions[call.digest] = decision

    async def write_permissions(self, agent: str, permissions: Permissions) -> None:
        """Write the permissions of an agent, unless the thread has them."""
        said: dict[str, Json] = {"type": _PERMITTED, "agent": agent, "changes": permissions.of(agent)}
        name = f"permissions:{sha256(canonical(said).encode()).hexdigest()[:24]}"
        if name in self._page.permissions:
            return
        self._page.permissions.add(name)
        if not await self._run.ledger.by_correlation(name, thread_id=self._run.thread_id):
            await self._run.note(_row(said, name), key=name)


async def begin_under(run: LedgerRun, cover: Cover) -> None:
    """Let an agent start or continue under a toolkit, and write the mark for that, unless the thread has it.

    Raises:
        UnguardedToolError: the toolkit does not ask for an approval that the thread requires.
        LedgerError: it could not be stored.
    """
    if run.opened.is_finished or not cover.tools:
        return
    mark = (await guards_of(run)).enter(cover, run.thread_id)
    if mark is not None:
        await run.note_soon(mark, key=f"guard:{cover.digest}")


class TaintLog:
    """Writes the taint of agents that run inside a tool of another agent as rows.

    A tool with a recorded outcome does not run again, and neither does the agent inside it: the row has the taint of that
    agent.
    """

    def __init__(self, run: LedgerRun) -> None:
        self._run = run
        self._own = run.course.invocation_id
        self._written = run.opened.share(_Page).readings

    async def keep(self, taint: Taint, agent_run: str | None) -> None:
        """Write the taint of an inner turn, and add the recorded taint."""
        if self._run.is_again:
            await self._recall(taint, agent_run)
        if taint.is_inside and taint.own is not None and self._own not in self._written:
            self._written.add(self._own)
            await self._run.note(_row({"type": _READ, "source": taint.own}, _READ), key=_READ)

    async def _recall(self, taint: Taint, agent_run: str | None) -> None:
        for row in await self._run.ledger.by_correlation(_READ, thread_id=self._run.thread_id):
            said, name = _data(row.message), row.message.id
            if said.get("type") != _READ:
                continue
            if name.startswith(f"{self._own}/"):
                self._written.add(self._own)
            if agent_run is not None and name.startswith(f"{agent_run}/"):
                taint.mark(str(said["source"]))


class GrantUses:
    """How many calls each grant has permitted in each thread. Grants without a limit are not counted."""

    def __init__(self) -> None:
        self._taking = Lock()
        self._outside = _Counted()
        """The calls outside of threads."""
        self._ledgers: WeakKeyDictionary[Ledger, WeakValueDictionary[str, _Counted]] = WeakKeyDictionary()
        """By ledger and thread, while a run of the thread is open. The next run counts again, from the ledger."""

    async def others(self, run: LedgerRun | None, grants: tuple[Grant, ...], call: RequestedCall) -> dict[Grant, int]:
        """Return how many other calls of the thread each grant has permitted."""
        if not any(grant.calls for grant in grants):
            return {}
        counted = self._of(run)
        if run is not None:
            await counted.read_on(run)
        own = set[str]() if run is None else {call.digest}
        return {grant: len(counted.calls[canonical(grant.to_json())] - own) for grant in grants if grant.calls}

    def take(self, run: LedgerRun | None, grant: Grant | None, call: RequestedCall) -> bool:
        """Count a call that a grant permits; False if a parallel call was faster and used the last permitted call."""
        if grant is None or grant.calls is None:
            return True
        with self._taking:
            counted = self._of(run).calls[canonical(grant.to_json())]
            # In a run, a repeated call gets the result of the first. Outside of a run, it is executed again.
            digest = f"{call.digest}#{len(counted)}" if run is None else call.digest
            if len(counted - {digest}) >= grant.calls:
                return False
            counted.add(digest)
            return True

    def _of(self, run: LedgerRun | None) -> _Counted:
        if run is None:
            return self._outside
        counts = run.opened.share(_Held).counts
        if self not in counts:
            threads = self._ledgers.setdefault(run.ledger, WeakValueDictionary())
            counts[self] = threads.setdefault(run.thread_id, _Counted())
        return counts[self]


class _Held:
    """The counts of a run. They are kept while it is open."""

    def __init__(self) -> None:
        self.counts: dict[GrantUses, _Counted] = {}


class _Counted:
    """The counts of a thread, as far as it was read: other processes may append to it."""

    def __init__(self) -> None:
        self.calls: dict[str, set[str]] = defaultdict(set)
        """By grant, the digests of the calls."""
        self._seq = 0

    async def read_on(self, run: LedgerRun) -> None:
        async for record in run.ledger.read(run.thread_id, self._seq):
            said = _data(record.message)
            if said.get("type") == _DECIDED and "grant" in said:
                self.calls[canonical(said["grant"])].add(str(said["digest"]))
            self._seq = max(self._seq, record.seq)


def _correlation(call: RequestedCall) -> str:
    return f"permission:{call.digest}"


def _row(said: dict[str, Json], correlation_id: str) -> Message:
    return Message(policy=RUNTIME_POLICY, payload=PartsPayload(parts=(DataPart(data=said),)), correlation_id=correlation_id)


def _data(message: Message) -> dict[str, Any]:
    """Return the data of a control row of the runtime; empty for any other row."""
    if message.lane != "control" or message.policy != RUNTIME_POLICY or not isinstance(message.payload, PartsPayload):
        return {}
    parts = message.payload.parts
    said = parts[0].data if len(parts) == 1 and isinstance(parts[0], DataPart) else None
    return thaw(said) if isinstance(said, JsonObject) else {}

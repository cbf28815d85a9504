"""A pytest plugin that makes the agents of another project's tests durable: `pytest -p durable_agents`.

Each agent is made with `LedgerDurability`, and each of its runs is in a thread of its own, in a ledger in memory.
"""

from contextlib import asynccontextmanager
from functools import wraps
from itertools import count
from typing import Any

from pydantic_ai import Agent
from pydantic_ai.durable_exec import BaseDurabilityCapability

from antiphon.agents import LedgerDurability
from antiphon.durable import current_run, ledger_run
from antiphon.ledger.memory import MemoryLedger

_make, _begin, _numbers, _ledger = Agent.__init__, Agent.iter, count(1), MemoryLedger()


@wraps(_make)
def _make_durable(self: Agent[Any, Any], *args: Any, capabilities: Any = None, **more: Any) -> None:
    given = list(capabilities or ())
    if not any(isinstance(each, BaseDurabilityCapability) for each in given):
        given.append(LedgerDurability(_ledger))
    _make(self, *args, capabilities=given, **more)


@wraps(_begin)
@asynccontextmanager
async def _begin_recorded(self: Agent[Any, Any], *args: Any, **more: Any) -> Any:
    durability = LedgerDurability.from_agent(self)
    if durability is None or current_run() is not None:
        async with _begin(self, *args, **more) as run:
            yield run
    else:
        async with ledger_run(f"test-{next(_numbers)}"), _begin(self, *args, **more) as run:
            yield run


Agent.__init__ = _make_durable  # type: ignore[method-assign]
Agent.iter = _begin_recorded  # type: ignore[method-assign,assignment]

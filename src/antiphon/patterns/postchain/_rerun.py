"""Reruns a stored thread on the installed code, to check whether the code still behaves the same.

The answers of actors are removed from a copy of the thread; the effects and the answers of models stay. Then the copy is
recovered as after a crash: each actor runs again, finds the outcomes of its effects, and is stopped if it sends a request or
starts an effect that differs from the records. Its answers are compared with the recorded ones. No model is asked.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, cast

from pydantic_ai import Tool
from pydantic_ai.messages import ModelMessage, ModelResponse
from pydantic_ai.models import Model, ModelRequestParameters, infer_model
from pydantic_ai.models.wrapper import WrapperModel
from pydantic_ai.settings import ModelSettings
from typing_extensions import override

from antiphon.agents.toolkit import Toolkit
from antiphon.errors import HistoryMismatchError, UnguardedToolError
from antiphon.ledger import Ledger, replay
from antiphon.ledger.memory import MemoryLedger
from antiphon.messages import Message, OptionCallPayload, OptionResultPayload, PartsPayload, thaw
from antiphon.patterns.cast import AgentSpec, Pattern, PatternOptions, together
from antiphon.patterns.postchain._cast import OwnAgent, make_named_model
from antiphon.patterns.postchain._config import ChainConfig
from antiphon.patterns.postchain._context import ProcessOwnPhase
from antiphon.patterns.postchain._lifecycle import LIFE
from antiphon.patterns.postchain._phase import PhaseLike
from antiphon.patterns.postchain._postchain import PostChain
from antiphon.protocol import PHASES, AgentConfig, Phase, PrepareContext, ProcessPhase, ProcessWithAgent, Retry
from antiphon.runtime import Settings
from antiphon.runtime._rows import AGAIN, enclosure_of

_AGAIN: Final = frozenset(
    kind.message_type for kind in (PrepareContext, ProcessPhase, ProcessOwnPhase, ProcessWithAgent, Retry)
)
"""The requests that are answered again."""
_MEASURED: Final = frozenset({"processing_time"})
"""The fields that differ between runs."""
_PATIENCE: Final = 10.0
_PATIENCE_OPEN: Final = 3.0
"""Seconds that an open thread has to reach its next step; otherwise it waits for a person or a timer."""
_SETTLE: Final = 0.05
_MISMATCHES: Final = frozenset({HistoryMismatchError.code, UnguardedToolError.code})


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first place where the installed code diverges from a thread."""

    seq: int
    """The place in the stored thread."""
    what: str
    """The request at that place."""
    reason: str


class _Silent(WrapperModel):
    """A model that is never asked: its answers are in the thread. It must exist, because its profile affects the prompts."""

    @override
    async def request(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
    ) -> ModelResponse:
        raise RuntimeError("a model is asked for something that it was not asked for then")


async def rerun(
    ledger: Ledger,
    thread_id: str,
    *,
    config: ChainConfig | None = None,
    tools: Iterable[Callable[..., Any] | Tool[Any]] = (),
    toolkit: Toolkit | None = None,
    agents: Mapping[Phase, OwnAgent] | None = None,
    phases: Iterable[PhaseLike] = PHASES,
    make_model: Callable[[str], Model] = make_named_model,
) -> Divergence | None:
    """Rerun the last turn of a thread, and return the first divergence; None: there is none.

    For a branch, only the work in the branch itself is rerun. `config`, `tools`, `toolkit`, `agents` and `phases` are as for a
    `PostChain`. `make_model` makes the models that the thread names. They are not asked, and neither are those of `agents`,
    but the prompts depend on them.

    Raises:
        ValueError: the thread has not ended, so that there is nothing to compare.
    """
    life = await replay(ledger, thread_id, LIFE.fold())
    if life.status not in ("completed", "failed"):
        state = "has not run" if life.status == "none" else f"is {life.status}"
        raise ValueError(f"thread {thread_id!r} {state}; only one that has ended can be compared")
    rows = [record.message async for record in ledger.read(thread_id)]
    start = _begun_at(rows)
    # Without the answers of actors since the start of the last turn, and without consequences of its end.
    unanswered = [row for place, row in enumerate(rows) if place <= start or not _is_rerun(row, rows[start])]
    copy = await _copied(ledger, thread_id, unanswered)
    models = _models(rows)
    silent = {name: _Silent(make_model(name)) for name in {*models.values(), *_own_models(rows)}}
    chain_config = _with_models(config or ChainConfig(), models)
    options: PatternOptions = {
        "tools": tools,
        "toolkit": toolkit,
        "make_model": lambda name: silent[name or ""],
        "recover": False,
        "settings": Settings(mismatch_patience=None),
    }
    with _silenced(agents or {}):
        async with PostChain(copy, config=chain_config, grace=0.2, agents=agents, phases=phases, **options) as chain:
            await chain.system.recover(thread_id)
            async with asyncio.timeout(_PATIENCE):
                await chain.wait(thread_id)
    return _compared(rows, start, [record.message async for record in copy.read(thread_id)])


async def _copied(ledger: Ledger, thread_id: str, rows: Sequence[Message], pattern: str = "postchain") -> MemoryLedger:
    """Return a ledger in memory with some rows of a thread, in which the thread can continue."""
    copy = MemoryLedger(redaction=await ledger.redaction.of(thread_id) or "off")
    copies = [row.model_copy(update={"thread_id": thread_id}) for row in rows]  # a branch shares some
    await copy.append(thread_id, copies, pattern=pattern, allow_foreign=True)
    return copy


async def forecast(
    ledger: Ledger,
    thread_id: str,
    *,
    open_pattern: Callable[[Ledger], Pattern] | None = None,
    config: ChainConfig | None = None,
    tools: Iterable[Callable[..., Any] | Tool[Any]] = (),
) -> Divergence | None:
    """Return the reason why the installed code cannot continue an open thread; None: it can, or the thread waits for a person.

    A copy of the thread is continued up to its next step: handlers run again with the recorded outcomes, and no model or tool
    is called. `open_pattern` makes the pattern on the copy; without one, it is a `PostChain` of `config` and `tools` with the
    recorded models. Nothing is written to the thread.
    """
    rows = [record.message async for record in ledger.read(thread_id)]
    summary = await ledger.thread(thread_id)
    copy = await _copied(ledger, thread_id, rows, (summary.pattern if summary is not None else None) or "postchain")
    if open_pattern is None:
        models = _models(rows)
        silent = {name: _Silent(make_named_model(name)) for name in {*models.values(), *_own_models(rows)}}
        chain_config = _with_models(config or ChainConfig(), models)
        # A phase that has not started has no recorded model yet, and is not asked here.
        options: PatternOptions = {
            "tools": tools,
            "make_model": lambda name: silent.get(name or "") or make_named_model(name or ""),
            "recover": False,
        }
        pattern: Pattern = PostChain(copy, config=chain_config, grace=0.2, **options)
    else:
        pattern = open_pattern(copy)
    reached = asyncio.Event()
    settings = Settings(mismatch_patience=None, block_limit=None, idle_after=None)
    async with together(pattern, settings=settings, recover=False) as system:
        system.admit(partial(_held, reached))
        await system.recover(thread_id)
        return await _until_next_step(copy, thread_id, len(rows), reached)


@asynccontextmanager
async def _held(reached: asyncio.Event, thread_id: str) -> AsyncGenerator[None]:
    """Hold every new effect: the records end here."""
    reached.set()
    await asyncio.Event().wait()
    yield


async def _until_next_step(copy: Ledger, thread_id: str, length: int, reached: asyncio.Event) -> Divergence | None:
    """Wait until a thread reaches a new step, ends, or waits for a person; return the first mismatch."""
    loop = asyncio.get_running_loop()
    until = loop.time() + _PATIENCE_OPEN
    while loop.time() < until:
        is_last = reached.is_set() or not await copy.open_calls(thread_id)
        await asyncio.sleep(_SETTLE)  # let parallel parts also reach their end
        async for record in copy.read(thread_id, after=length):
            payload = record.message.payload
            if isinstance(payload, OptionResultPayload) and payload.error_type in _MISMATCHES:
                rows = await copy.find(invocation_id=payload.invocation_id, thread_id=thread_id)
                place = min((row.seq for row in rows), default=1)
                return Divergence(place, f"{payload.option_name} to {record.message.policy}", payload.error_message or "")
        if is_last:
            return None
    return None


@contextmanager
def _silenced(agents: Mapping[Phase, OwnAgent]) -> Generator[None]:
    """Replace the models of the program's agents with models that are never asked."""
    with ExitStack() as stack:
        for own_agent in agents.values():
            agent = own_agent.agent if isinstance(own_agent, AgentSpec) else own_agent
            if agent is not None and agent.model is not None:
                stack.enter_context(agent.override(model=_Silent(infer_model(agent.model))))
        yield


def _with_models(config: ChainConfig, models: Mapping[Phase, str]) -> ChainConfig:
    """Return the current configuration of the phases, but each with its recorded model."""
    phases = dict(config.phases)
    for phase, name in models.items():
        phases[phase] = phases.get(phase, AgentConfig()).merged(AgentConfig(model=name))
    return config.model_copy(update={"phases": phases, "backoff": 0.0})


def _is_rerun(row: Message, start: Message) -> bool:
    """Whether a rerun writes a row again."""
    run = f"{start.invocation_id}/run"
    payload = row.payload
    if row.id.startswith(f"{run}/result") or (row.parent_id or "").startswith(f"{run}/result"):
        return True
    if row.lane == "effect" and not isinstance(payload, PartsPayload) and payload.option_name == AGAIN:
        return True  # the earlier number of deliveries does not matter here
    if not isinstance(payload, OptionResultPayload):
        return False
    if row.lane == "effect":
        return payload.invocation_id == run
    return row.lane == "control" and payload.option_name in _AGAIN


def _models(rows: Sequence[Message]) -> dict[Phase, str]:
    """Return the model of each phase."""
    models: dict[Phase, str] = {}
    for row in rows:
        payload = row.payload
        if row.lane == "control" and isinstance(payload, OptionResultPayload) and not payload.is_error:
            prepared: Any = thaw(payload.result) if payload.option_name == PrepareContext.message_type else {}
            if name := prepared.get("context", {}).get("metadata", {}).get("agent", {}).get("model"):
                models[prepared["phase_type"]] = name
    return models


def _own_models(rows: Sequence[Message]) -> set[str]:
    """Return the models of the program's phases."""
    asked = [row for row in rows if isinstance(row.payload, OptionCallPayload) and row.lane == "control"]
    agents: list[dict[str, Any]] = [thaw(enclosure_of(row).get("agent") or {}) for row in asked]
    return {str(agent["model"]) for agent in agents if agent.get("model")}


def _compared(rows: Sequence[Message], start: int, again: Sequence[Message]) -> Divergence | None:
    """Return the first answer that differs from the recorded one."""
    now = {row.invocation_id: row for row in again if isinstance(row.payload, OptionResultPayload) and row.lane == "control"}
    for seq, row in enumerate(rows[start:], start + 1):
        payload = row.payload
        if not isinstance(payload, OptionResultPayload) or row.lane != "control" or payload.option_name not in _AGAIN:
            continue
        is_failure = payload.is_error and payload.option_name == ProcessWithAgent.message_type
        if is_failure or payload.option_name == Retry.message_type:
            continue  # an agent that failed: the rerun has at once what a RETRY got, and the answer of the phase is compared
        new_row = now.get(row.invocation_id)
        answer: Any = None if new_row is None else new_row.payload
        names = [] if answer is None else _differing(thaw(payload.result), thaw(answer.result))
        reason = f"another {', another '.join(names)}" if names else None
        if answer is None:
            reason = "it is not asked any more"
        elif answer.is_error and not payload.is_error:
            reason = str(answer.error_message)
        if reason is not None:
            return Divergence(seq, f"{payload.option_name} to {row.policy}", reason)
    return None


def _differing(then: Any, now: Any, where: str = "") -> list[str]:
    """Return the fields in which two answers differ."""
    if not isinstance(then, dict) or not isinstance(now, dict):
        return [] if then == now else [where or "answer"]
    old, new = cast("dict[str, Any]", then), cast("dict[str, Any]", now)
    differences: list[str] = []
    for name in dict.fromkeys((*old, *new)):
        if name not in _MEASURED:
            differences += _differing(old.get(name), new.get(name), f"{where}.{name}".lstrip("."))
    return differences


def _begun_at(rows: Sequence[Message]) -> int:
    """Return the place of the last message that started the thread: START_THREAD, or the message that resumed a branch."""
    ids = {row.id for row in rows}
    calls = [place for place, row in enumerate(rows) if row.lane == "control" and isinstance(row.payload, OptionCallPayload)]
    return max(place for place in calls if f"{rows[place].invocation_id}/run" in ids)

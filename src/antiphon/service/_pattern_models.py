"""Patterns that stay open in a process and answer conversations like a language model: six phases, and teams from files.

An exchange is a thread. The conversation up to its last message is written to the thread first, as history: talk that triggers
nothing, in which open calls are never executed. Then the last message is asked. So `antiphon resume` continues an exchange
whose process has ended, like any thread.

A repeated exchange with the same thread does not run again: the caller waits for the first, or gets its outcome.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Generic, TypeAlias, TypeVar

from antiphon._listeners import listener
from antiphon.errors import AntiphonError, ConfigError, SetupError, ThreadEndedError
from antiphon.messages import Conversation

if TYPE_CHECKING:
    from antiphon.ledger import Ledger
    from antiphon.patterns.cast import Pattern
    from antiphon.patterns.cast._pattern import TaskInput
    from antiphon.service import ChainEvent
    from antiphon.service._running import ChainRunner, RunReport
    from antiphon.service._settings import RunSettings

_log: Final = logging.getLogger("antiphon.service")
CHAIN_MODEL: Final = "postchain"
"""The name of the six phases."""
EXCHANGE: Final = "exchange-"
"""The prefix of the id of a thread whose request may be repeated. No other new thread may have such an id."""
_TEAM: Final = "team"
OpenT = TypeVar("OpenT")


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A pattern under the name by which it is asked."""

    name: str
    about: str
    team: Path | None = None
    """The file of a team; None: the six phases."""


@dataclass(frozen=True, slots=True)
class ModelExchange:
    """A conversation for a model, and the thread in which it is answered."""

    model: str
    conversation: Conversation
    thread_id: str
    by: str = "user"
    """Who asks."""


def read_models(teams: Sequence[Path] = ()) -> tuple[ServedModel, ...]:
    """Return the six phases and the teams of files. A team is named after its file, or if that is `team`, after its folder.

    Raises:
        ConfigError: a file cannot be read, or is wrong.
        SetupError: two have the same name.
    """
    models = {
        CHAIN_MODEL: ServedModel(CHAIN_MODEL, "Six phases: action, experience, intention, observation, understanding, yield")
    }
    for path in teams:
        name = path.resolve().parent.name if path.stem == _TEAM else path.stem
        from antiphon.patterns.team_files._team_file import TeamFile  # noqa: PLC0415 (needs the extra `agents`)

        if name in models:
            raise SetupError(f"{path}: there is a model {name!r} already; rename the file")
        models[name] = ServedModel(name, TeamFile.read(path).about, path)
    return tuple(models.values())


OnAnswer: TypeAlias = Callable[[str | None], None]
"""Receives the text of an answer in pieces; None: the answer starts again."""


class ServedModels:
    """The models of a process. Each is opened when it is first asked, and stays open until `close`."""

    def __init__(
        self, ledger: Ledger, models: Sequence[ServedModel], *, model: str | None = None, team_model: str | None = None
    ) -> None:
        """Make it; `model` is the language model of the six phases, `team_model` overrides those of the team files."""
        self._ledger = ledger
        self._served = {served.name: served for served in models}
        self._model = model
        self._team_model = team_model
        self._open: dict[str, _OpenBlock[Any]] = {}
        self._running: dict[str, asyncio.Task[RunReport]] = {}
        self._asked: dict[str, ModelExchange] = {}

    def __len__(self) -> int:
        """Return how many threads run here."""
        teams = sum(self._served[exchange.model].team is not None for exchange in self._asked.values())
        entry = self._open.get(CHAIN_MODEL)
        runner: ChainRunner | None = None if entry is None else entry.opened
        return teams + max(len(self._running) - teams, 0 if runner is None else runner.at_work)

    @property
    def served(self) -> tuple[ServedModel, ...]:
        """The models."""
        return tuple(self._served.values())

    def find(self, name: str) -> ServedModel | None:
        """Return a model; None: there is no model with that name."""
        return self._served.get(name)

    async def open_teams(self) -> None:
        """Open the teams now, so that an error in a file is reported at the start."""
        for model in self.served:
            if model.team is not None:
                await self._opened(model.name, self._team(model.team))

    async def close(self) -> None:
        """Stop running work; open calls stay open, and the next owner of the thread continues them."""
        for entry in self._open.values():
            await entry.close()
        for task in tuple(self._running.values()):
            task.cancel()
        await asyncio.gather(*self._running.values(), return_exceptions=True)

    # ------------------------------------------------------------ exchanges

    def begin(self, exchange: ModelExchange, on_text: OnAnswer | None = None) -> asyncio.Task[RunReport]:
        """Start to answer a conversation, and return the task; `on_text` is called with the text of the answer.

        It is called with None when the answer starts again: a model that failed in the middle is asked again.

        If the exchange already runs, its task is returned, and `on_text` is not called.
        """
        if exchange.thread_id in self._running:
            return self._running[exchange.thread_id]
        task = asyncio.ensure_future(self._answer(exchange, listener(on_text)))
        self._running[exchange.thread_id], self._asked[exchange.thread_id] = task, exchange
        task.add_done_callback(
            lambda _: (self._running.pop(exchange.thread_id, None), self._asked.pop(exchange.thread_id, None))
        )
        return task

    async def _answer(self, exchange: ModelExchange, on_text: OnAnswer | None) -> RunReport:
        from antiphon.patterns.cast._pattern import TaskInput  # noqa: PLC0415 (needs the extra `agents`)

        task, served = TaskInput.of(exchange.conversation), self._served[exchange.model]
        is_known = await self._ledger.thread(exchange.thread_id) is not None
        if served.team is None:
            return await self._from_chain(exchange, task, on_text, is_known=is_known)
        return await self._from_team(exchange, task, served.team, is_known=is_known)

    async def _from_chain(
        self, exchange: ModelExchange, task: TaskInput, on_text: OnAnswer | None, *, is_known: bool
    ) -> RunReport:
        runner, thread_id = await self.chain(), exchange.thread_id
        if is_known:
            try:
                return await runner.resume(thread_id)
            except ThreadEndedError:
                return await runner.report(thread_id)

        def take(event: ChainEvent) -> None:
            if on_text is not None and event.kind == "text" and event.phase == _LAST_PHASE:
                on_text(event.text or None)

        history = _history(task)
        if not history:
            return await runner.ask(task.text, name=thread_id, user_id=exchange.by, on_event=take)
        await runner.append_history(thread_id, history)
        return await runner.ask(task.text, thread_id=thread_id, user_id=exchange.by, on_event=take)

    async def _from_team(self, exchange: ModelExchange, task: TaskInput, team: Path, *, is_known: bool) -> RunReport:
        from antiphon.service._running import recover_thread, report_of  # noqa: PLC0415 (needs the extra `agents`)
        from antiphon.service._settings import record_settings  # noqa: PLC0415

        opened = await self._opened(exchange.model, self._team(team))
        pattern, thread_id = opened.pattern, exchange.thread_id
        began, after = asyncio.get_running_loop().time(), (await self._ledger.head(thread_id)).seq
        if is_known:
            await recover_thread(pattern, thread_id)
        elif history := _history(task):
            await pattern.system.append_history(thread_id, history)
        await record_settings(self._ledger, thread_id, replace(opened.settings, task=task.text), pattern.system)
        outcome = await pattern.run(task.text, thread_id=thread_id)
        return await report_of(self._ledger, outcome, began, after=after)

    async def cancel(self, exchange: ModelExchange) -> None:
        """End an exchange that nobody waits for: its thread is terminated, and nothing starts in it any more."""
        with suppress(AntiphonError):  # it has ended by itself
            if self._served[exchange.model].team is None:
                await (await self.chain()).terminate(exchange.thread_id, _GONE)
            else:
                opened = await self._opened(exchange.model, self._team(self._served[exchange.model].team))
                await opened.pattern.terminate(exchange.thread_id, _GONE)

    # ------------------------------------------------------------ open patterns

    async def chain(self) -> ChainRunner:
        """Return the six phases; the first time, they are opened."""
        from antiphon.service._running import open_chain  # noqa: PLC0415 (needs the extra `agents`)

        return await self._opened(CHAIN_MODEL, open_chain(self._ledger, model=self._model))

    async def _opened(self, name: str, block: AbstractAsyncContextManager[OpenT]) -> OpenT:
        entry: _OpenBlock[OpenT] = self._open.setdefault(name, _OpenBlock(block))
        try:
            return await entry.value()
        except BaseException:
            if entry.has_failed and self._open.get(name) is entry:
                del self._open[name]  # the next one tries again
            raise

    @asynccontextmanager
    async def _team(self, path: Path | None) -> AsyncGenerator[_OpenTeam]:
        from antiphon.service._running import opened_team  # noqa: PLC0415 (needs the extra `agents`)
        from antiphon.service._settings import RunSettings  # noqa: PLC0415

        if path is None:
            raise ConfigError("this model has no team file")
        settings = RunSettings.of_team(path, "", model=self._team_model, files=None, budget=None)
        async with opened_team(self._ledger, path, model=self._team_model) as pattern:
            yield _OpenTeam(pattern, settings)


_LAST_PHASE: Final = "yield"
_GONE: Final = "client_gone"


@dataclass(frozen=True, slots=True)
class _OpenTeam:
    pattern: Pattern
    settings: RunSettings
    """With the file as it was when the team was opened."""


def _history(task: TaskInput) -> tuple[Any, ...]:
    """Return the messages before the request; a request that is more than text is one of them."""
    return (*task.history, *(() if task.message is None else (task.message,)))


class _OpenBlock(Generic[OpenT]):
    """A block that stays open in its own task, until it is closed."""

    def __init__(self, block: AbstractAsyncContextManager[OpenT]) -> None:
        self._block = block
        self._stop = asyncio.Event()
        self._ready: asyncio.Future[OpenT] | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def opened(self) -> OpenT | None:
        """The value, if it is available."""
        is_open = self._ready is not None and self._ready.done() and self._ready.exception() is None
        return self._ready.result() if self._ready is not None and is_open else None

    @property
    def has_failed(self) -> bool:
        """Whether it could not be opened."""
        return self._ready is not None and self._ready.done() and self._ready.exception() is not None

    async def value(self) -> OpenT:
        """Return the value of the block; open it, the first time."""
        if self._ready is None:
            self._ready = asyncio.get_running_loop().create_future()
            self._task = asyncio.ensure_future(self._keep(self._ready))
        return await asyncio.shield(self._ready)

    async def _keep(self, ready: asyncio.Future[OpenT]) -> None:
        try:
            async with self._block as value:
                ready.set_result(value)
                await self._stop.wait()
        except Exception as exc:  # noqa: BLE001 (those who wait for it get it)
            if ready.done():
                _log.warning("a pattern was closed with an error: %s", type(exc).__name__)
            else:
                ready.set_exception(exc)

    async def close(self) -> None:
        """Close it."""
        self._stop.set()
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)

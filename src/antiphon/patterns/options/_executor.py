"""Executor: the public class of the pattern. Policies choose options, options produce results, and the ledger records both."""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import partial
from typing import Any, Final, Unpack

from typing_extensions import override

from antiphon.agents.config import known_names
from antiphon.errors import DeliveryError
from antiphon.ledger import Ledger
from antiphon.messages import Conversation, Message, current_port, dumps, thaw
from antiphon.patterns.cast import (
    UNHURRIED,
    Cast,
    MessageHistory,
    Outcome,
    Pattern,
    PatternOptions,
    Task,
    as_messages,
    failed,
    known_by,
    read_answer,
)
from antiphon.patterns.options._actor import ExecutorActor
from antiphon.patterns.options._calls import ExecutorSetup
from antiphon.patterns.options._decision import top_of
from antiphon.patterns.options._options import Options
from antiphon.patterns.options._protocol import CompleteCalls, ExecutorLimits, RunPolicy
from antiphon.patterns.options._rules import All, Rule
from antiphon.runtime import System

_MOST: Final = 256 * 1024
"""Bytes of messages in one request; more are written to the thread first, because a ledger row has at most a MiB."""


class Executor(Pattern):
    """Runs policies and the options that they choose, in durable threads."""

    def __init__(
        self,
        ledger: Ledger | None = None,
        options: Options | None = None,
        *,
        policy: str | None = None,
        rule: Rule = All(),  # noqa: B008 (frozen)
        name: str = "options",
        limits: ExecutorLimits = ExecutorLimits(),  # noqa: B008 (frozen)
        **common: Unpack[PatternOptions],
    ) -> None:
        """Make it; nothing runs before the `async with` block.

        `policy` is the default policy of `run`; it may be left out if there is only one. `rule` applies to decisions that
        name no rule. `name` distinguishes two executors in one system. The other options are those of every pattern: see
        `Pattern` and `Cast`. They apply to the policies that are agents. `toolkit` is the toolkit of the options, so it is
        given here only if `options` is not.

        Raises:
            ValueError: there is no such policy, or `toolkit` is not the one of the options.
            CastError: an agent names a tool that does not exist.
        """
        super().__init__(ledger, **common)
        toolkit = self.cast_options.get("toolkit")
        self.options = Options(toolkit) if options is None else options
        if toolkit is not None and toolkit is not self.options.toolkit:
            raise ValueError("the options have another toolkit: use Options(toolkit), and leave out toolkit= here")
        self.limits = limits
        if policy is not None and policy not in self.options.policies:
            raise ValueError(f"there is no policy {policy!r}{known_names(policy, self.options.policies, 'there are', 'none')}")
        self._policy = policy
        self._name = name
        self.cast_options["toolkit"] = self.options.toolkit
        self._cast = Cast(self.ledger, self.options.agents, **self.cast_options)
        self._setup = ExecutorSetup(self.options, limits, rule, self._cast)

    @override
    def host(self, system: System) -> None:
        for spec in self.options.agents:  # policies that were added after the executor was made
            if spec.name not in self._cast:
                self._cast.add(spec)
        system.register(self._name, partial(ExecutorActor, self._setup))

    @override
    async def run(
        self,
        task: Task | Iterable[Message],
        *,
        thread_id: str | None = None,
        message_history: MessageHistory = (),
        policy: str | None = None,
    ) -> Outcome:
        """Run a policy on a text or on messages until it calls nothing, and return its answer.

        The same task in the same thread continues where it stopped, or returns the recorded outcome. The policy also observes
        the `message_history` and the earlier messages of the thread.

        Raises:
            ValueError: there are several policies, and none is named.
            ParkedError: a person must settle or approve something; then run it again.
            HistoryMismatchError: the thread records another course of this run.
            LedgerError: it cannot be stored.
        """
        thread_id = thread_id or current_port().new_id()
        given = [*as_messages(message_history), *_observed(task)]
        said: dict[str, Any] = {"input": task} if isinstance(task, str) else {}
        if given or not said:
            said["observations"] = _written(given)
        own_id = known_by("run", thread_id, name := policy or self._only(), json.dumps(said, sort_keys=True))
        if sum(map(len, said.get("observations", ()))) > _MOST:
            await self._hand_over(given, thread_id, own_id)
            said["observations"] = ()
        request = RunPolicy(policy=name, **said)
        try:
            ran = await self.system.ask(self._address, request, within=UNHURRIED, thread_id=thread_id, id=own_id)
        except DeliveryError as exc:
            return failed(thread_id, exc)
        answer = await read_answer(self.ledger, thread_id, partial(_is_answer, own_id))
        return Outcome(thread_id, "completed", ran.response, data=thaw(ran.data), messages=answer)

    async def _hand_over(self, messages: Iterable[Message], thread_id: str, request_id: str) -> None:
        """Write messages that are too large for a request to the thread: the policy observes the thread."""
        if not await self.ledger.by_invocation(request_id, thread_id=thread_id):
            own = {"thread_id": thread_id, "parent_id": None}
            await self.system.append_history(thread_id, [each.model_copy(update=own) for each in messages])

    async def execute(self, conversation: Iterable[Message] = (), *, thread_id: str | None = None) -> Conversation:
        """Run every call without a result in a conversation or a stored thread, and return it with the results.

        Raises:
            DeliveryError: it cannot be done; the class tells why.
            LedgerError: it cannot be stored.
        """
        thread_id = thread_id or current_port().new_id()
        there = await top_of(self.ledger, thread_id)
        given = _written(each for each in conversation if there.get(each.id) is None)
        open_calls = [call.id for call in there.open_calls()]
        if given or open_calls:
            request, own_id = CompleteCalls(observations=given), known_by("complete", thread_id, *given, "", *open_calls)
            await self.system.ask(self._address, request, within=UNHURRIED, thread_id=thread_id, id=own_id)
        return await top_of(self.ledger, thread_id)

    @property
    def _address(self) -> str:
        return f"{self._name}/1"

    def _only(self) -> str:
        names = self.options.policies
        if self._policy is None and len(names) != 1:
            raise ValueError(f"name the policy: policy= one of {', '.join(names) or 'none'}")
        return self._policy or names[0]


def _observed(task: Task | Iterable[Message]) -> Iterable[Message]:
    if isinstance(task, str):
        return ()
    return (task,) if isinstance(task, Message) else task


def _is_answer(run_id: str, message: Message) -> bool:
    """Whether a message is the answer of a run's policy."""
    return message.parent_id == run_id and message.kind == "parts" and message.id != f"{run_id}/said"


def _written(messages: Iterable[Message]) -> tuple[str, ...]:
    return tuple(dumps(message).decode() for message in messages)

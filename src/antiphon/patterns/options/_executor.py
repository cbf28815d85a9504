"""Executor: the public class of the pattern; and its actor, which runs policies in threads and completes open calls.

The loop: a policy decides, every call without a result is run, the results are appended in the order of the calls, and the
policy decides again. The loop ends when a decision calls nothing: then its text is the answer. An option that is a policy runs
the same loop as part of the run, with its own keys, in the same thread. The `parent_id` of a loop's message is the invocation
that runs the loop, and the ids of nested work start with that id.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from hashlib import sha256
from typing import Any, Unpack

from typing_extensions import override

from antiphon.agents._config import known_names
from antiphon.agents.durability._talk import ThreadTalk
from antiphon.durable import LedgerRun, current_run
from antiphon.durable._budget import Bounds
from antiphon.errors import BudgetExceededError, DecodeError, DeliveryError, RefusedError
from antiphon.ledger import Ledger
from antiphon.ledger._request import from_outside
from antiphon.messages import Conversation, Message, PartsPayload, TextPart, current_port, dumps, loads, thaw
from antiphon.messages._arguments import check_type
from antiphon.patterns.cast import Cast, MessageHistory, Outcome, Pattern, PatternOptions, Task
from antiphon.patterns.cast._handling import UNHURRIED, handling, request_key
from antiphon.patterns.cast._pattern import as_messages, failed, read_answer
from antiphon.patterns.options._calls import ExecutorSetup, complete, read_taint
from antiphon.patterns.options._decision import DecisionEffect, Past, PolicyAnswer, top_of
from antiphon.patterns.options._options import Choices, Options, Policy, nesting
from antiphon.patterns.options._rules import (
    PATTERN,
    All,
    CallsCompleted,
    CompleteCalls,
    ExecutorLimits,
    PolicyRan,
    Rule,
    RunPolicy,
    rule_in,
)
from antiphon.protocol import ErrorCode
from antiphon.runtime import Actor, Context, System, handles

# ---------------------------------------------------------------- the loop


class Loop:
    """The loop of one policy."""

    def __init__(self, setup: ExecutorSetup, run: LedgerRun, policy: Policy, past: Past, *, depth: int = 0) -> None:
        self._setup, self._run, self._policy, self._past, self._depth = setup, run, policy, past, depth
        self._hash = sha256()

    async def go(self, observations: Iterable[Message]) -> PolicyAnswer:
        """Ask the policy until it calls nothing, and return its last answer."""
        options, name = self._setup.options, self._policy.name
        choices, tools = Choices(name, await options.offered_to(name)), await options.tools()
        seen = self._seen(Conversation((), tools=choices.tools), observations)
        with nesting(self._nest):
            while True:
                observed = self._hash.hexdigest()[:32]
                decision = DecisionEffect(
                    self._setup, self._run, self._policy, seen, choices, observed=observed, past=self._past, tools=tools
                )
                messages = await decision.make()
                read_taint(self._run, messages)  # a provider's own tools may have found something while the model decided
                calls = Conversation(messages).open_calls()
                if not calls:
                    return PolicyAnswer.of(messages)
                rule = rule_in(messages) or self._setup.rule
                results = await complete(self._setup, self._run, calls, rule, exceeded=decision.exceeded)
                seen = self._seen(seen, [*messages, *results])

    def _seen(self, seen: Conversation, observations: Iterable[Message]) -> Conversation:
        added = list(observations)
        for message in added:
            self._hash.update(dumps(message))
        return seen.extend(added)

    async def _nest(self, policy: Policy, task: str) -> Any:
        """Run another policy as part of this loop."""
        limits, run = self._setup.limits, current_run()
        if self._depth >= limits.depth:
            raise BudgetExceededError(f"the run has used up its {limits.depth} policies inside of each other")
        assert run is not None  # noqa: S101 (an option is called inside of a run)
        payload = PartsPayload(parts=(TextPart(text=task),))
        record = await run.say(Message(policy=self._policy.name, payload=payload, role_hint_for_llm="user"), key="task")
        loop = Loop(self._setup, run, policy, self._past, depth=self._depth + 1)
        return (await loop.go([record.message])).value


# ---------------------------------------------------------------- the actor


class ExecutorActor(Actor):
    """Runs policies in threads; those of one thread one after the other."""

    concurrency = 1000

    def __init__(self, setup: ExecutorSetup) -> None:
        self._setup = setup

    @handles
    async def run(self, request: RunPolicy, context: Context) -> PolicyRan:
        """Run a policy to its end."""
        policies = self._setup.options.policies
        if request.policy not in policies:
            reason = f"there is no policy {request.policy!r}; there are {', '.join(policies) or 'none'}"
            raise RefusedError(reason, ErrorCode.VALIDATION_ERROR)
        policy = self._setup.options.find(request.policy)
        async with handling(context, PATTERN) as handler:
            run = handler.run
            self._limit(run)
            past = await Past.read(run, self._setup.limits)
            task: list[Message] = []
            if request.input is not None:
                task = await _write(run, [_task_message(run.course.invocation_id, request.input)])
            read_taint(run, past.before)
            answer = await Loop(self._setup, run, policy, past).go([*past.before, *task])
        return PolicyRan(response=answer.text, **({} if answer.data is None else {"data": answer.data}))

    @handles
    async def complete(self, request: CompleteCalls, context: Context) -> CallsCompleted:
        """Complete the calls of a conversation."""
        async with handling(context, PATTERN) as handler:
            run = handler.run
            self._limit(run)
            past = await Past.read(run, self._setup.limits)
            try:
                rows = [_as_talk(loads(text.encode(), Message)) for text in request.observations]
            except DecodeError as exc:
                raise RefusedError(str(exc), ErrorCode.VALIDATION_ERROR) from exc
            observations = await _write(run, rows)  # not as a history, whose open calls are closed: these must run
            calls = Conversation([*past.before, *observations]).open_calls()
            if not calls:
                return CallsCompleted()
            read_taint(run, [*past.before, *observations])
            exceeded = past.count_calls(len(calls))
            results = await complete(self._setup, run, calls, self._setup.rule, exceeded=exceeded)
        return CallsCompleted(results=tuple(result.id for result in results))

    def _limit(self, run: LedgerRun) -> None:
        """Apply the budgets of the cast to a run.

        This precedes reading the thread, because only then are its requests counted.
        """
        run.opened.share(ThreadTalk).spending.deciding_agents = frozenset(spec.name for spec in self._setup.options.agents)
        run.opened.share(Bounds).add(self._setup.cast.budgets)


def _as_talk(message: Message) -> Message:
    """Return a message from outside as talk, so that no actor treats it as a request.

    The runtime's metadata is removed, except the mark of untrusted content.
    """
    return from_outside(message.model_copy(update={"lane": "talk", "to": ()}))


async def _write(run: LedgerRun, rows: list[Message]) -> list[Message]:
    """Write messages to the thread once, and return them as stored."""
    in_thread = [row.model_copy(update={"thread_id": run.thread_id}) for row in rows]
    return [record.message for record in await run.journal.write(run.thread_id, in_thread, allow_foreign=True)]


def _task_message(run_id: str, text: str) -> Message:
    """Return the task of a run as a user's message."""
    payload = PartsPayload(parts=(TextPart(text=text),))
    return Message(id=f"{run_id}/said", policy="user", payload=payload, role_hint_for_llm="user", parent_id=run_id)


# ---------------------------------------------------------------- the public class


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
            SetupError: an agent names a tool that does not exist.
        """
        super().__init__(ledger, **common)
        check_type("options", options, Options | None, "Options()")
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
    def casts(self) -> Iterable[Cast]:
        return (self._cast,)

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
        """
        thread_id = thread_id or current_port().new_id()
        task_messages = () if isinstance(task, str) else (task,) if isinstance(task, Message) else task
        messages = [*as_messages(message_history), *task_messages]
        names = self.options.policies
        if policy is None and self._policy is None and len(names) != 1:
            raise ValueError(f"name the policy: policy= one of {', '.join(names) or 'none'}")
        name = policy or self._policy or names[0]
        run = RunPolicy(policy=name, input=task) if isinstance(task, str) else RunPolicy(policy=name)
        request_id = request_key("run", thread_id, name, repr(run.input), *_written(messages))
        if messages and not await self.ledger.find(invocation_id=request_id, thread_id=thread_id):
            fields = {"thread_id": thread_id, "parent_id": None}
            await self.system.append_history(thread_id, [_as_talk(row).model_copy(update=fields) for row in messages])
        try:
            ran = await self.system.ask(self._address, run, within=UNHURRIED, thread_id=thread_id, id=request_id)
        except DeliveryError as exc:
            return failed(thread_id, exc)
        answer = await read_answer(self.ledger, thread_id, partial(_is_answer, request_id))
        return Outcome(thread_id, "completed", ran.response, data=thaw(ran.data), messages=answer)

    async def execute(self, conversation: Iterable[Message] = (), *, thread_id: str | None = None) -> Conversation:
        """Run every call without a result in a conversation or a stored thread, and return it with the results."""
        thread_id = thread_id or current_port().new_id()
        stored = await top_of(self.ledger, thread_id)
        observations = _written(message for message in conversation if stored.get(message.id) is None)
        open_calls = [call.id for call in stored.open_calls()]
        if observations or open_calls:
            request_id = request_key("complete", thread_id, *observations, "", *open_calls)
            request = CompleteCalls(observations=observations)
            await self.system.ask(self._address, request, within=UNHURRIED, thread_id=thread_id, id=request_id)
        return await top_of(self.ledger, thread_id)

    @property
    def _address(self) -> str:
        return f"{self._name}/1"


def _is_answer(run_id: str, message: Message) -> bool:
    """Whether a message is the answer of a run's policy."""
    return message.parent_id == run_id and message.kind == "parts" and message.id != f"{run_id}/said"


def _written(messages: Iterable[Message]) -> tuple[str, ...]:
    return tuple(dumps(message).decode() for message in messages)

"""Providers' formats: the conversation of 200 messages in the form of three of them, all at once and as it grows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from antiphon import Conversation, dumps, encode, loads
from antiphon.dialects import Projection
from benchmarks._harness import Goal, Table, clocked, clocked_on
from benchmarks._messages import Case, conversation
from benchmarks.peers import antiphon_, langchain_, litellm_, pydantic_ai_models, straight

__all__ = ["tables"]

TARGETS = ("openai-chat", "anthropic-messages", "gemini")
LOOP = "straight loop"
OURS = "antiphon"
ALL = "encode all"
ONE, TURN = "projection, a new message", "projection, a new turn"
SHORT, LONG = "200 messages", "2,000 messages"
SMALL = 200
"""Bytes of a result, about."""

NOTES = (
    "antiphon and the loop: from messages as they were loaded, arguments and results text still; the values are equal",
    "looked at: all values parsed before, as pydantic-ai has them; losses: found out too, by reading back what was written",
    "peers convert their own messages: of pydantic-ai results are parsed, of LiteLLM and langchain-core they are text",
)


def tables(part: str = "") -> Iterator[Table]:
    """Make three tables per format."""
    makers: dict[str, Callable[[str], Table]] = {"to": _whole, "grow": _growing, "length": _length}
    for kind, make in makers.items():
        for target in TARGETS:
            if part in f"{kind} {target}":
                yield make(target)


# ---------------------------------------------------------------- all at once


def _whole(target: str) -> Table:
    case = conversation()
    fresh, loop = partial(_loaded, case), straight.LOOPS[target]
    _refuse_difference(fresh(), target)
    works: dict[str, Callable[[], object] | None] = {
        LOOP: partial(loop, fresh()),
        OURS: partial(encode, fresh(), target),
        "antiphon, looked at": partial(encode, _looked_at(fresh()), target),
        "antiphon, with losses": partial(_losses, fresh(), target),
        "pydantic-ai": pydantic_ai_models.mapping(case, target),
        "litellm": _litellm(fresh(), target),
        "langchain-core": langchain_.to_openai(case) if target == "openai-chat" else None,
    }
    litellm = (Goal(OURS, 1 / 4, "litellm"),) if works["litellm"] else ()
    return Table(
        name=f"to {target}",
        unit="us a message",
        scale=1e6,
        baseline=LOOP,
        candidates={name: clocked(work, len(case.messages)) for name, work in works.items() if work is not None},
        against=(OURS,),
        absent=tuple(name for name, work in works.items() if work is None),
        goals=(Goal(OURS, 1.4, LOOP), Goal(OURS, 1 / 3.5, "pydantic-ai"), *litellm),
        notes=NOTES,
    )


def _loaded(case: Case) -> Conversation:
    """Return the usual state: messages that were stored, and that nobody has looked at."""
    return loads(dumps(Conversation(antiphon_.construct(case))), Conversation)


def _looked_at(conversation: Conversation) -> Conversation:
    for message in conversation:
        repr(message)
    return conversation


def _losses(conversation: Conversation, target: str) -> object:
    return encode(conversation, target).losses


def _litellm(conversation: Conversation, target: str) -> Callable[[], object] | None:
    chat = encode(conversation, "openai-chat").value["messages"]
    return None if target == "openai-chat" else litellm_.conversion(chat, target)


def _refuse_difference(conversation: Conversation, target: str) -> None:
    if encode(conversation, target).value != straight.LOOPS[target](conversation):
        raise RuntimeError(f"the loop to {target} does not write what antiphon writes")


# ---------------------------------------------------------------- as it grows


def _growing(target: str) -> Table:
    """Compare writing what is new with writing all again."""
    history = _loaded(conversation(41))
    prepare = partial(_begun, history[:200], target)
    return Table(
        name=f"grow {target}",
        unit="us",
        scale=1e6,
        baseline=ALL,
        candidates={
            ALL: clocked(partial(encode, history[:201], target)),
            ONE: clocked_on(prepare, partial(_go_on, history[:201])),
            TURN: clocked_on(prepare, partial(_go_on, history)),
        },
        goals=(Goal(ONE, 0.15, ALL),),
        notes=("after 200 messages: a user's text, or a turn of that, two calls and two results",),
    )


def _begun(conversation: Conversation, target: str) -> Projection:
    projection = Projection(target)
    projection.encode(conversation)
    return projection


def _go_on(conversation: Conversation, projection: Projection) -> object:
    return projection.encode(conversation)


# ---------------------------------------------------------------- by length


def _length(target: str) -> Table:
    loop = straight.LOOPS[target]
    short, long = (_loaded(conversation(turns, SMALL)) for turns in (40, 400))
    works = {
        SHORT: (partial(encode, short, target), 200),
        LONG: (partial(encode, long, target), 2000),
        f"{LOOP}, {SHORT}": (partial(loop, short), 200),
        f"{LOOP}, {LONG}": (partial(loop, long), 2000),
    }
    return Table(
        name=f"length {target}",
        unit="us a message",
        scale=1e6,
        baseline=SHORT,
        candidates={name: clocked(work, units) for name, (work, units) in works.items()},
        against=(f"{LOOP}, {SHORT}",),
        goals=(Goal(LONG, 1.2, SHORT),),
        notes=("results are small, so that less memory is touched; the loop shows how a loop without any look grows",),
    )

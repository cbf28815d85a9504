"""Long conversations with tools, the same on every run: one with results of about two kilobytes, one of all sizes."""

from collections.abc import Iterator
from functools import partial
from random import Random

from antiphon import Message, MessageBuilder, OptionResultBuilder

_WORDS = [
    "the",
    "report",
    "shows",
    "that",
    "ferry",
    "traffic",
    "in",
    "the",
    "harbour",
    "rose",
    "again",
    "after",
    "the",
    "new",
    "timetable",
    "while",
    "most",
    "of",
    "the",
    "older",
    "lines",
    "were",
    "kept",
    "and",
    "a",
    "second",
    "survey",
    "found",
    "no",
    "clear",
    "change",
    "in",
    "how",
    "long",
    "people",
    "wait",
    "for",
    "a",
    "connection",
    "between",
    "the",
    "island",
    "and",
    "the",
    "city",
]


def _prose(random: Random, words: int) -> str:
    return " ".join(random.choices(_WORDS, k=words))


def errands(turns: int) -> Iterator[Message]:
    """Yield five messages a turn, of 4 to 400 words: a question, a thought and a call, a result, an answer."""
    random = Random(7)
    for step in range(1, turns + 1):
        yield MessageBuilder(step_num=step).add_text(_prose(random, random.choice([4, 8, 15, 40]))).to_message()
        asked = MessageBuilder(policy="assistant", step_num=step)
        asked.add_text(_prose(random, random.choice([5, 10, 30])))
        asked.add_option_call("search", {"query": _prose(random, 4), "limit": 10})
        yield from asked.to_messages()
        found = [{"title": _prose(random, 4), "text": _prose(random, 36)} for _ in range(random.choice([0, 1, 2, 5, 10]))]
        yield OptionResultBuilder.response_to(asked.last_option_call).success({"hits": found})
        yield (
            MessageBuilder(policy="assistant", step_num=step)
            .add_text(_prose(random, random.choice([20, 60, 120])))
            .to_message()
        )


def conversation(turns: int) -> Iterator[Message]:
    """Yield five messages a turn: a question, two calls, two results."""
    random = Random(7)
    prose = partial(_prose, random)

    for step in range(1, turns + 1):
        yield MessageBuilder(step_num=step).add_text(f"How busy was the ferry on day {step}? {prose(8)}").to_message()
        asked = MessageBuilder(policy="assistant", step_num=step)
        asked.add_option_call("search_documents", {"query": prose(3), "limit": 10, "fields": ["title", "url"]})
        asked.add_option_call("get_weather", {"city": prose(1), "days": 3, "units": {"speed": "m/s"}})
        yield from asked.option_calls
        for call in asked.option_calls:
            found = [{"id": random.randrange(90_000), "title": prose(5), "snippet": prose(16)} for _ in range(11)]
            yield OptionResultBuilder.response_to(call).success({"total": len(found), "results": found})

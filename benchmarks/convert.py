"""Conversion: the tool conversation from each format to each other one, against loading it once in the house format.

What is lost is found out when somebody looks: one row per table looks, and has no goal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import orjson

from antiphon import Conversation, convert, decode, dumps, encode, loads
from antiphon.dialects import Encoded, Loss
from benchmarks._harness import Goal, Table, clocked
from benchmarks._messages import cases
from benchmarks.peers import antiphon_

__all__ = ["tables"]

FORMATS = ("choir", "marsys", "agent-framework", "atlas")
LOAD = "load once"
READ = "read once"
"""Only the first half of a conversion: from the source's format to the core."""


def tables(part: str = "") -> Iterator[Table]:
    """Make one table per source."""
    (case,) = (case for case in cases() if case.is_stream)
    conversation = Conversation(antiphon_.construct(case))
    data = dumps(conversation)
    for source in FORMATS:
        if part in f"from {source}":
            text = orjson.dumps(encode(conversation, source).value)
            targets = {
                f"to {target}": partial(convert, text, source=source, target=target) for target in FORMATS if target != source
            }
            first = next(iter(targets))
            candidates = {
                LOAD: partial(loads, data, Conversation),
                READ: partial(decode, text, source),
                **targets,
                f"{first}, losses looked at": partial(_losses, targets[first]),
            }
            yield Table(
                name=f"convert from {source}",
                unit="us a message",
                scale=1e6,
                baseline=LOAD,
                candidates={name: clocked(work, len(case.messages)) for name, work in candidates.items()},
                against=(READ,),
                goals=tuple(Goal(name, 2.0, LOAD) for name in targets),
                notes=("from JSON text to parsed JSON; what is lost is found when it is looked at",),
            )


def _losses(conversion: Callable[[], Encoded]) -> tuple[Loss, ...]:
    return conversion().losses

"""Keys: the one grammar of addresses and invocation ids, and the one place that parses them.

    address      kind | kind/key            `thread/t-1`: the address of an actor
    invocation   parent/step                a call or an effect during its parent; the first has no parent
    step         key | key=N | N            `model=2`: the second of its key; a number if the program gave no key
    renamed      invocation~N               N from 2: the call or effect under the id before was withdrawn
    row          invocation@mark            about an invocation: `@begun`, `@ended`, `@attempt2`, `@end` of a run
                 invocation#mark            deliveries and decisions: `#2`, `#park`, `#park2`, `#withdrawn`, `#settled`,
                                            `#reopen`, `#changed-…`, `#patch-…`; `#stop`, `#stop2` of a message that something
                                            outside stopped; `#failed` of a run, `#failed2` of its second attempt

A key has none of `/ # ~ =` in it and is not a number, so every id can be taken apart again. Ids are stored: their text never
changes.
"""

from __future__ import annotations

import re
from hashlib import sha256

_KEY = re.compile("[^/#~=]{1,200}")
_LONG_NAME = 120
"""The most characters of a name that is used as a key unchanged; a longer one is replaced by a digest."""
_LONG_PARENT = 256
"""The most characters of a parent's id: they leave room in a name for a step and for the marks of rows."""
_END = "@end"


# ---------------------------------------------------------------- addresses


def kind_of(address: str) -> str:
    """Return the kind of the actor at an address."""
    return address.partition("/")[0]


def key_of(address: str) -> str:
    """Return the key of the actor at an address; empty if its kind has only one actor."""
    return address.partition("/")[2]


# ---------------------------------------------------------------- invocations


def is_key(name: str) -> bool:
    """Whether a program may use a name as the key of a step."""
    return _KEY.fullmatch(name) is not None and not name.isdigit()


def as_key(name: str) -> str:
    """Return a name as a key: the name itself if it is a valid key, else a digest of it."""
    if len(name) <= _LONG_NAME and is_key(name):
        return name
    return f"sha256:{sha256(name.encode(errors='replace')).hexdigest()[:32]}"


def counted(key: str, count: int) -> str:
    """Return the step for the first, second, … use of a key."""
    return key if count == 1 else f"{key}={count}"


def step_id(parent_id: str, step: str) -> str:
    """Return the id of a step of an invocation."""
    return f"{parent_id}/{step}"


def child_id(parent_id: str, step: str) -> str:
    """Return the id of a step of an invocation that may be deeply nested: a long parent id is replaced by a digest."""
    if len(parent_id) > _LONG_PARENT:  # otherwise the id could become longer than a name may be
        parent_id = sha256(parent_id.encode()).hexdigest()
    return step_id(parent_id, step)


def parent_of(invocation_id: str) -> str:
    """Return the parent of an invocation; empty for the first."""
    return invocation_id.rpartition("/")[0]


def root_of(invocation_id: str) -> str:
    """Return the first step of an id."""
    return invocation_id.partition("/")[0]


def last_key(invocation_id: str) -> str:
    """Return the key of the last step, without its count."""
    return invocation_id.rpartition("/")[2].partition("=")[0]


def is_below(invocation_id: str | None, parent_id: str) -> bool:
    """Whether an invocation is a descendant of another, at any depth."""
    return invocation_id is not None and invocation_id.startswith(f"{parent_id}/")


def renamed(invocation_id: str) -> str:
    """Return the id to use after the call or effect under this one was withdrawn."""
    base, mark, count = invocation_id.rpartition("~")
    return f"{base}~{int(count) + 1}" if mark and count.isdigit() else f"{invocation_id}~2"


def base_of(invocation_id: str) -> str:
    """Return the id before it was renamed."""
    base, mark, count = invocation_id.rpartition("~")
    return base if mark and count.isdigit() else invocation_id


def is_renamed(invocation_id: str) -> bool:
    """Whether a call or effect under an earlier id was withdrawn."""
    return base_of(invocation_id) != invocation_id


# ---------------------------------------------------------------- rows about an invocation


def begun_id(invocation_id: str) -> str:
    """Return the id of the row that records the start."""
    return f"{invocation_id}@begun"


def ended_id(invocation_id: str) -> str:
    """Return the id of the row with the outcome."""
    return f"{invocation_id}@ended"


def attempt_id(invocation_id: str, attempt: int) -> str:
    """Return the id of the row that records another attempt of an effect."""
    return f"{invocation_id}@attempt{attempt}"


def again_id(invocation_id: str, attempt: int) -> str:
    """Return the invocation of the row that counts the deliveries of a message."""
    return f"{invocation_id}#{attempt}"


def park_id(invocation_id: str, time: int = 1) -> str:
    """Return the invocation of the row that parks a message or an effect, for the first time or a later one."""
    return f"{invocation_id}#park" if time == 1 else f"{invocation_id}#park{time}"


def stop_id(invocation_id: str, time: int) -> str:
    """Return the invocation of the row that says why a message stopped, for the first time or a later one."""
    return f"{invocation_id}#stop" if time == 1 else f"{invocation_id}#stop{time}"


def reopen_id(invocation_id: str) -> str:
    """Return the invocation of the rows that reopen a failed effect."""
    return f"{invocation_id}#reopen"


def failed_id(invocation_id: str, attempt: int) -> str:
    """Return the invocation of the row that records the error of an attempt of a run."""
    return f"{invocation_id}#failed" if attempt == 1 else f"{invocation_id}#failed{attempt}"


def withdrawn_id(invocation_id: str) -> str:
    """Return the id of the result of a call that its caller has withdrawn."""
    return f"{invocation_id}#withdrawn"


def settled_id(invocation_id: str) -> str:
    """Return the id of the result that an operator gave a parked call."""
    return f"{invocation_id}#settled"


def changed_id(invocation_id: str, digest: str) -> str:
    """Return the id of the row that records how a run continues after the program has changed a step."""
    return f"{invocation_id}#changed-{digest}"


def patch_id(run_id: str, name: str) -> str:
    """Return the id of the row that records that a run takes a new branch of its program."""
    return f"{run_id}#patch-{as_key(name)}"


def end_id(run_id: str) -> str:
    """Return the id of the final answer of an agent's run, after its exchanges with the model."""
    return f"{run_id}{_END}"


def run_of(exchange_id: str) -> str:
    """Return the run that an exchange with the model, or a final answer, belongs to."""
    return exchange_id.removesuffix(_END) if exchange_id.endswith(_END) else parent_of(exchange_id)

"""Every error that antiphon raises on purpose, as one tree.

```
AntiphonError                     .retryable: may the same thing succeed later?
├── DialectError                  .dialect .where
│   ├── DecodeError               their bytes are wrong
│   │   └── NewerVersionError     written by a later antiphon: upgrade, then read
│   ├── EncodeError               our message cannot be said in this dialect
│   ├── StreamCutError            .opened .state: a streamed answer broke off; resume it, or ask again
│   └── StreamFailedError         .code: the provider gave up in the middle of an answer
├── LedgerError                   .thread_id
│   ├── AppendRefusedError        .code .message_id: a message that the thread cannot take; mend it
│   ├── AppendConflictError       .version: someone appended first; read again, then decide
│   ├── FencedError               .epoch: the thread has another owner; stop
│   ├── OwnedError                .owner .until: a host that lives has the thread; post to it, or wait
│   ├── HostError                 .host
│   │   ├── UnknownHostError      the ledger does not know the host; beat, then go on
│   │   ├── HostExpiredError      the lease of the host is over; beat, and drop the threads that it lost
│   │   └── HostNameTakenError    .until: another process that lives has the name; choose another
│   ├── RestoreRefusedError       .seq: rows that no head from elsewhere proves; get the heads
│   ├── UnknownThreadError        the ledger has no such thread; look at the name
│   ├── SecretNameError           .what: a name looks like a secret; choose another
│   ├── LedgerUnavailableError    locked, full or failing; try again later
│   ├── LedgerCorruptError        .seq: what was read is not what was written; never go on
│   └── LedgerFormatError         not a ledger, or of a later antiphon; look at the file
├── SetupError                    a program or a file sets up what cannot be; the text says what to change
│   ├── ConfigError               antiphon.toml cannot be read, or has a key that is not known
│   ├── ChainConfigError          the configuration of a chain cannot be read, or has a key that is not known
│   ├── TeamFileError             a team file cannot be read, or has a key that is not known
│   ├── CastError                 an agent is named that takes no part, or takes part twice
│   └── ToolOffError              .tool .line: a tool is used that is not turned on
├── ModelError                    .model: the model that was asked for cannot be used
│   ├── UnknownModelError         .nearest: no model has that name; look at it
│   ├── MissingKeyError           .variables: set one of them, or choose a model that needs no key
│   ├── MissingExtraError         .install: a package is not installed; also a ModuleNotFoundError
│   ├── ScriptError               .where: a script is wrong, or has no turn left
│   ├── WeightsError              the local model's file is not there, or is another; install it
│   └── LocalServerError          the local model's server does not start, or dies again and again
├── EffectError                   raised in an effect, to say how it ended
│   ├── FailedError               .code .details: it failed; the caller gets a RefusedError
│   └── UnknownOutcomeError       it may or may not have been done; what must not be done twice is parked
├── WorkFailedError               an agent answered with an error; also a RuntimeError
├── CalculationError              not arithmetic, or too large to be calculated; also a ValueError
└── DeliveryError                 .code .address: why a message to an actor has no answer
    ├── UndeliverableError        no actor lives there; look at the address, or spawn it
    ├── ActorStoppedError         the actor has stopped and takes no more messages
    ├── MailboxFullError          the actor does not keep up; try again later
    ├── ReplyTimeoutError         no answer in time; also a TimeoutError
    ├── WithdrawnError            the caller was cancelled and wants no answer
    ├── HopLimitError             passed on too often, or asked in a circle
    ├── BudgetExceededError       the thread has used up what it was given
    ├── RefusedError              .details: the actor answers with an error; raise it in a handler to do so
    ├── ActorFailedError          the actor raised something else; its supervisor knows
    ├── EffectFailedError         what an effect ran has raised
    ├── ParkedError               it waits for a person, with the evidence
    ├── ToolServerError           .server: a server of tools that is required cannot be used; look at it
    ├── HistoryMismatchError      this code does something else than the thread says it did
    │   └── UnguardedToolError    it would start a tool without the toolkit that guards it there
    └── EscalatedError            a supervisor gave up
```

Branches are the layers that speak; leaves are what the caller can do about it. Programming mistakes stay `ValueError`,
`TypeError` and `RuntimeError`, and a value refused by a constructor is Pydantic's `ValidationError`: neither is in the tree.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from types import MappingProxyType
from typing import Any

__all__ = [
    "ActorFailedError",
    "ActorStoppedError",
    "AntiphonError",
    "AppendConflictError",
    "AppendRefusedError",
    "BudgetExceededError",
    "CalculationError",
    "CastError",
    "ChainConfigError",
    "ConfigError",
    "DecodeError",
    "DeliveryError",
    "DialectError",
    "EffectError",
    "EffectFailedError",
    "EncodeError",
    "EscalatedError",
    "FailedError",
    "FencedError",
    "HistoryMismatchError",
    "HopLimitError",
    "HostError",
    "HostExpiredError",
    "HostNameTakenError",
    "LedgerCorruptError",
    "LedgerError",
    "LedgerFormatError",
    "LedgerUnavailableError",
    "LocalServerError",
    "MailboxFullError",
    "MissingExtraError",
    "MissingKeyError",
    "ModelError",
    "NewerVersionError",
    "OwnedError",
    "ParkedError",
    "RefusedError",
    "ReplyTimeoutError",
    "RestoreRefusedError",
    "ScriptError",
    "SecretNameError",
    "SetupError",
    "StreamCutError",
    "StreamFailedError",
    "TeamFileError",
    "ToolOffError",
    "ToolServerError",
    "UndeliverableError",
    "UnguardedToolError",
    "UnknownHostError",
    "UnknownModelError",
    "UnknownOutcomeError",
    "UnknownThreadError",
    "WeightsError",
    "WithdrawnError",
    "WorkFailedError",
]


class AntiphonError(Exception):
    """The base of the tree: one `except` for everything antiphon refuses."""

    retryable: bool = False
    """Whether the same thing, unchanged, may succeed later."""


class DialectError(AntiphonError):
    """Something could not be said or understood in a message format."""

    def __init__(self, reason: str, *, dialect: str, where: str = "") -> None:
        super().__init__(reason, dialect, where)
        self.reason = reason
        self.dialect = dialect
        self.where = where
        """Where in the data: a path such as `payload.arguments.limit`, or a line; empty for the whole."""

    def __str__(self) -> str:
        place = f" at {self.where}" if self.where else ""
        return f"{self.dialect}{place}: {self.reason}"

    def __reduce__(self) -> tuple[object, ...]:
        return _revive, (type(self), self.reason, self.dialect, self.where)


class DecodeError(DialectError):
    """The data that came in is not what its format says; nothing of it was kept."""


class NewerVersionError(DecodeError):
    """The data was written by a later version of antiphon than this one can read."""


class EncodeError(DialectError):
    """The conversation says something that the format cannot, and the caller did not want to lose it."""


class StreamCutError(DialectError):
    """A streamed answer broke off before it was whole."""

    retryable = True

    def __init__(self, reason: str, *, dialect: str, where: str = "", opened: tuple[str, ...], state: dict[str, Any]) -> None:
        super().__init__(reason, dialect=dialect, where=where)
        self.opened = opened
        """What had begun and is not whole."""
        self.state = state
        """What `Stream.resume` goes on from: plain JSON."""

    def __reduce__(self) -> tuple[object, ...]:
        return _revive, (type(self), self.reason, self.dialect, self.where, {"opened": self.opened, "state": self.state})


class StreamFailedError(DialectError):
    """The provider said, in the middle of a streamed answer, that it failed. The reason is in its own words."""

    def __init__(
        self, reason: str, *, dialect: str, where: str = "", code: str | None = None, retryable: bool = False
    ) -> None:
        super().__init__(reason, dialect=dialect, where=where)
        self.code = code
        """What the provider calls it (`overloaded_error`, `503`); None if it has no name for it."""
        self.retryable = retryable

    def __reduce__(self) -> tuple[object, ...]:
        details = {"code": self.code, "retryable": self.retryable}
        return _revive, (type(self), self.reason, self.dialect, self.where, details)


def _revive(
    cls: type[DialectError], reason: str, dialect: str, where: str, details: Mapping[str, Any] = MappingProxyType({})
) -> DialectError:
    return cls(reason, dialect=dialect, where=where, **details)


# ---------------------------------------------------------------- the ledger


class LedgerError(AntiphonError):
    """The ledger did not do what it was asked to; what it had acknowledged before is as it was."""

    def __init__(self, reason: str, thread_id: str | None = None, *details: object) -> None:
        super().__init__(reason, thread_id, *details)
        self.reason = reason
        self.thread_id = thread_id
        """The thread that it is about; None for the ledger as a whole."""

    def __str__(self) -> str:
        return f"thread {self.thread_id!r}: {self.reason}" if self.thread_id is not None else self.reason


class AppendRefusedError(LedgerError):
    """A message breaks a rule that every thread keeps, such as a result without its call. Nothing was appended."""

    def __init__(self, reason: str, thread_id: str, code: str, message_id: str) -> None:
        super().__init__(reason, thread_id, code, message_id)
        self.code = code
        """The code under which `check` reports the same thing."""
        self.message_id = message_id

    def __str__(self) -> str:
        return f"thread {self.thread_id!r}, message {self.message_id!r}: {self.reason} ({self.code})"


class AppendConflictError(LedgerError):
    """The thread is not as long as the caller believed. Nothing was appended: read what is new, then decide."""

    def __init__(self, thread_id: str, expected: int, version: int, hash: str) -> None:
        super().__init__(f"expected version {expected}, but it is at {version}; read what is new, then decide", thread_id)
        self.args = (thread_id, expected, version, hash)
        self.expected = expected
        self.version = version
        """How many messages are there now."""
        self.hash = hash
        """The hash of the last one."""


class FencedError(LedgerError):
    """The caller does not own the thread, or no longer. Nothing was appended, and nothing more should be done for it."""

    def __init__(self, thread_id: str, given: int | None, epoch: int) -> None:
        said = "no epoch was given" if given is None else f"epoch {given} was given"
        owner = "it was released since" if given == epoch else f"its owner has epoch {epoch}"
        super().__init__(f"{said}, and {owner}; claim it, or use post", thread_id)
        self.args = (thread_id, given, epoch)
        self.given = given
        self.epoch = epoch
        """The epoch of the present owner, or of the last one; 0 if the thread was never claimed."""


class OwnedError(LedgerError):
    """A host that lives owns the thread. Nothing was changed: post to the thread, or wait until the host gives it up."""

    retryable = True

    def __init__(self, thread_id: str, owner: str, until: datetime, advice: str = "post to it, or claim it later") -> None:
        reason = f"host {owner!r} has it, at least until {until.isoformat(timespec='seconds')}; {advice}"
        super().__init__(reason, thread_id)
        self.args = (thread_id, owner, until, advice)
        self.owner = owner
        """The name of the host."""
        self.until = until
        """When its lease ends, unless it is renewed."""


class HostError(LedgerError):
    """A process cannot act as the host that it says it is."""

    def __init__(self, reason: str, host: str) -> None:
        super().__init__(reason)
        self.args = (reason, host)
        self.host = host
        """The name of the host."""

    def __str__(self) -> str:
        return f"host {self.host!r}: {self.reason}"


class UnknownHostError(HostError):
    """The ledger does not know the host, or another process has its name since. Call `beat` first."""

    def __init__(self, host: str) -> None:
        super().__init__("the ledger does not know this process as a host; call beat first, and again within each lease", host)
        self.args = (host,)


class HostExpiredError(HostError):
    """The lease of the host is over, so others may have its threads. Call `beat`, and drop the threads that it lost."""

    def __init__(self, host: str, until: datetime) -> None:
        ended = until.isoformat(timespec="seconds")
        super().__init__(f"its lease ended at {ended}; call beat, and drop the threads that others have taken", host)
        self.args = (host, until)
        self.until = until
        """When its lease ended."""


class HostNameTakenError(HostError):
    """Another process that lives has the name. Choose another name, or wait until the lease of the other one is over."""

    retryable = True

    def __init__(self, host: str, until: datetime) -> None:
        lasts = until.isoformat(timespec="seconds")
        super().__init__(f"another process has this name, and its lease lasts until {lasts}; choose another name", host)
        self.args = (host, until)
        self.until = until
        """When the lease of the other process ends, unless it is renewed."""


class RestoreRefusedError(LedgerError):
    """Rows were to be restored that no head proves, or that there is no place for. Nothing was restored."""

    def __init__(self, reason: str, thread_id: str | None = None, seq: int | None = None) -> None:
        super().__init__(reason, thread_id, seq)
        self.seq = seq
        """The first row that does not fit; None if it is not about one."""

    def __str__(self) -> str:
        place = "" if self.seq is None else f" at seq {self.seq}"
        return f"thread {self.thread_id!r}{place}: {self.reason}" if self.thread_id is not None else self.reason


class UnknownThreadError(LedgerError):
    """There is no such thread in this ledger."""


class SecretNameError(LedgerError):
    """A name looks like a secret. Nothing was written: a name cannot be redacted, because it is what a thing is found by."""

    def __init__(self, what: str) -> None:
        super().__init__(f'{what} looks like a secret; choose another name, or open the ledger with redaction="off"')
        self.args = (what,)
        self.what = what
        """Which name it is, such as "the status of a thread". The name itself is not told, because errors are logged."""


class LedgerUnavailableError(LedgerError):
    """The store cannot be used at present: locked by another, out of space, failing.

    An append that ends so is there as a whole or not at all; appending the same messages again settles it.
    """

    retryable = True


class LedgerCorruptError(LedgerError):
    """What is stored is not what was written."""

    def __init__(self, reason: str, thread_id: str | None = None, seq: int | None = None) -> None:
        super().__init__(reason, thread_id, seq)
        self.seq = seq
        """The first message that is not as it was; None if that cannot be said."""

    def __str__(self) -> str:
        place = "" if self.seq is None else f" at seq {self.seq}"
        return f"thread {self.thread_id!r}{place}: {self.reason}" if self.thread_id is not None else self.reason


class LedgerFormatError(LedgerError):
    """What was opened is not a ledger that this version of antiphon can use."""


# ---------------------------------------------------------------- setting up


class SetupError(AntiphonError):
    """A program or a file sets up what cannot be; the text says what to change."""


class ConfigError(SetupError):
    """`antiphon.toml` cannot be read, or has a key that is not known."""


class ChainConfigError(SetupError):
    """The configuration of a chain cannot be read, or has a key that is not known."""


class TeamFileError(SetupError):
    """A team file cannot be read, or has a key that is not known."""


class CastError(SetupError):
    """An agent is named that takes no part, or takes part twice; the text says which agents there are."""


class ToolOffError(SetupError):
    """A tool is used that is not turned on."""

    def __init__(self, tool: str, line: str) -> None:
        super().__init__(tool, line)
        self.tool = tool
        self.line = line
        """What to write into `antiphon.toml` to turn it on."""

    def __str__(self) -> str:
        return f"{self.tool} is off: what agents ask on the web leaves this machine; to turn it on, write {self.line}"


# ---------------------------------------------------------------- models


class ModelError(AntiphonError):
    """The model that was asked for cannot be used."""

    def __init__(self, reason: str, model: str, *details: object) -> None:
        super().__init__(reason, model, *details)
        self.reason = reason
        self.model = model

    def __str__(self) -> str:
        return f"model {self.model!r}: {self.reason}"


class UnknownModelError(ModelError):
    """No model has that name."""

    def __init__(self, reason: str, model: str, nearest: tuple[str, ...] = ()) -> None:
        super().__init__(reason, model, nearest)
        self.nearest = nearest
        """Names like it that there are, the most alike first."""


class MissingKeyError(ModelError):
    """The provider wants a key, and none is set."""

    def __init__(self, reason: str, model: str, variables: tuple[str, ...] = ()) -> None:
        super().__init__(reason, model, variables)
        self.variables = variables
        """Environment variables that its key may stand in, as the provider's client says."""


class MissingExtraError(ModelError, ModuleNotFoundError):
    """A package that the model needs is not installed."""

    def __init__(self, reason: str, model: str, install: str) -> None:
        super().__init__(reason, model, install)
        self.install = install
        """What to install."""


class ScriptError(ModelError):
    """A script cannot be read, names a tool that is not there, or has no turn left for what is asked."""

    def __init__(self, reason: str, model: str, where: str = "") -> None:
        super().__init__(reason, model, where)
        self.where = where
        """Where in the script: a path such as `rules.0.when`; empty for the whole."""

    def __str__(self) -> str:
        place = f" at {self.where}" if self.where else ""
        return f"model {self.model!r}{place}: {self.reason}"


class WeightsError(ModelError):
    """The file that the local model is read from is not there, or not the one that was pinned."""


class LocalServerError(ModelError):
    """The server of the local model is not running, and starting it again does not help."""

    retryable = True


# ---------------------------------------------------------------- effects and work


class EffectError(AntiphonError):
    """Raised in what an effect runs, to say how it ended."""


class FailedError(EffectError):
    """Raise it in `run` to have an effect fail with a code and details of its own: the caller gets a `RefusedError`."""

    def __init__(self, reason: str, code: str, *, details: object = None, retryable: bool = False) -> None:
        super().__init__(reason, code)
        self.reason = reason
        self.code = code
        self.details = details
        self.retryable = retryable


class UnknownOutcomeError(EffectError):
    """Raise it in `run` where it is not known whether the effect was done: what must not be done twice is parked."""


class WorkFailedError(AntiphonError, RuntimeError):
    """An agent has answered with an error; the message says which."""


class CalculationError(AntiphonError, ValueError):
    """The text is not arithmetic, or too large to be calculated; the message says why."""


# ---------------------------------------------------------------- delivery


class DeliveryError(AntiphonError):
    """A message did not get the answer that was due, for a reason that the code says.

    The same error stands in the ledger as an error result with that code, and is raised again from it after a crash.
    """

    code: str = "DELIVERY_ERROR"
    """What it is called in an error response."""

    def __init__(self, reason: str, address: str | None = None) -> None:
        super().__init__(reason, address)
        self.reason = reason
        self.address = address
        """The actor that the message was for."""
        self.message_id: str | None = None
        """The id of the message, where it has one that can be told again, as a RETRY does."""

    def __str__(self) -> str:
        return self.reason if self.address is None else f"{self.address}: {self.reason}"


class UndeliverableError(DeliveryError):
    """No actor lives at the address, and no factory is registered for its kind."""

    code = "ACTOR_NOT_FOUND"


class ActorStoppedError(DeliveryError):
    """The actor has stopped; what it had not handled is with the dead letters."""

    code = "ACTOR_STOPPED"


class MailboxFullError(DeliveryError):
    """The mailbox had no room before the deadline. Nothing was delivered."""

    code = "MAILBOX_FULL"
    retryable = True


class ReplyTimeoutError(DeliveryError, TimeoutError):
    """The deadline has passed. What the actor was doing for it was cancelled."""

    code = "TIMEOUT"
    retryable = True


class WithdrawnError(DeliveryError):
    """The caller was cancelled, and its request with it."""

    code = "CANCELLED"
    retryable = True


class HopLimitError(DeliveryError):
    """The message followed from too many others, or asks an actor that waits for its answer."""

    code = "HOP_LIMIT"


class BudgetExceededError(DeliveryError):
    """The thread may not say more: its budget of messages, tokens or money is used up."""

    code = "BUDGET_EXCEEDED"


class RefusedError(DeliveryError):
    """An actor's own error answer. A handler that raises it has not failed: it has answered."""

    def __init__(
        self,
        reason: str,
        code: str = "REFUSED",
        *,
        details: object = None,
        retryable: bool = False,
        address: str | None = None,
    ) -> None:
        super().__init__(reason, address)
        self.code = code
        self.details = details
        """More about it, as JSON."""
        self.retryable = retryable

    def __reduce__(self) -> tuple[object, ...]:
        return _revive_refused, (self.reason, self.code, self.details, self.retryable, self.address)


def _revive_refused(reason: str, code: str, details: object, retryable: bool, address: str | None) -> RefusedError:
    return RefusedError(reason, code, details=details, retryable=retryable, address=address)


class ActorFailedError(DeliveryError):
    """The actor's handler raised; `__cause__` is what, where it happened in this process."""

    code = "ACTOR_FAILED"


class EffectFailedError(DeliveryError):
    """What was run as an effect raised. The outcome is recorded, and the same when the handler runs again."""

    code = "EFFECT_FAILED"


class ParkedError(DeliveryError):
    """It must not go on by itself: it crashed its actor too often, or it is not known whether an effect was done that must not
    be done twice. A person settles it.
    """

    code = "PARKED"


class ToolServerError(DeliveryError):
    """A server of tools that a toolkit requires cannot be used, or offers what cannot be. The reason says what to do."""

    code = "TOOL_SERVER_FAILED"
    retryable = True

    @property
    def server(self) -> str:
        """What the toolkit calls the server."""
        return self.address or ""


class HistoryMismatchError(DeliveryError):
    """A handler runs again and does something else than the thread says it did. Bring back the old code, or settle it."""

    code = "HISTORY_MISMATCH"


class UnguardedToolError(HistoryMismatchError):
    """The thread was begun under a toolkit, and this program would start a tool of it without. Nothing was started.

    Give the agent the toolkit again; what waits for a person waits on.
    """

    code = "UNGUARDED_TOOL"


class EscalatedError(DeliveryError):
    """A supervisor has restarted too often, and hands the failure on."""

    code = "ESCALATED"

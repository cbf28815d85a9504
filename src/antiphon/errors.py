"""Every error that antiphon raises on purpose, as one tree.

```
AntiphonError                     .retryable: may the same operation succeed later?
├── DialectError                  .dialect .where
│   ├── DecodeError               the input is not valid in its format
│   ├── EncodeError               the conversation cannot be written in this format
│   ├── StreamCutError            .opened .state: a streamed answer was interrupted; resume it, or repeat the request
│   └── StreamFailedError         .code: the provider failed in the middle of an answer
├── LedgerError                   .thread_id
│   ├── AppendRefusedError        .code .message_id: the thread refuses a message; fix the message
│   ├── AppendConflictError       .version: another writer appended first; re-read, then decide
│   ├── FencedError               .epoch: the thread has another owner; stop
│   │   └── ThreadMovedError      .to: it continues in another ledger; use that one
│   ├── OwnedError                .owner .until: a live host owns the thread; post to it, or wait
│   ├── HostError                 .code .host .until: a process is not the host that it says it is; call beat, or choose a name
│   ├── OtherRedactionError       the ledger has other redaction rules, or a live host uses them; do as it says
│   ├── RestoreRefusedError       .seq: a thread cannot be restored or copied to a ledger; do as it says
│   ├── UnknownThreadError        the ledger has no such thread; check the name
│   ├── SecretNameError           .what: a name looks like a secret; choose another one
│   ├── LedgerUnavailableError    locked, full or failing; try again later
│   │   └── LedgerFullError       there is no space left on its disk; make some, then try again
│   ├── LedgerCorruptError        .seq: the stored data was changed; do not continue
│   ├── EncryptionError           .code: a thread is encrypted, or is not, or another master key wraps its key; do as it says
│   │   ├── NoMasterKeyError      the ledger was opened without its master key; give it
│   │   ├── ForgottenError        the key of the thread was deleted; its messages can no longer be read
│   │   └── NotSearchableError    an encrypted thread is in no index; read it instead
│   └── LedgerFormatError         not a ledger, or written by a newer antiphon; check the file
├── SetupError                    invalid configuration; the text says what to change
│   ├── ConfigError               antiphon.toml, a chain's configuration or a team file is unreadable, or has an unknown key
│   └── SettingsError             .option: a recorded setting of the thread is missing, has changed, or is not trusted; name it
├── ModelError                    .model .where: the requested model cannot be used; its script is invalid, or has no turn left
│   ├── UnknownModelError         .nearest: no model has that name; check the name
│   ├── MissingKeyError           .variables: set one of them, or choose a model without a key
│   ├── MissingExtraError         .install: a package is not installed; also a ModuleNotFoundError
│   └── LocalModelError           the local model's file is missing or differs, or its server does not start; do as it says
├── FailedError                   .code .details: raise it in an effect that failed; the caller gets a RefusedError
├── UnknownOutcomeError           raise it in an effect whose outcome is unknown; one that must not repeat is parked
├── ServiceError                  .thread_id .code: a command or request cannot do what was asked; do as it says
│   ├── PlaceError                the thread or ledger has no such place, or does not continue from there; name another
│   ├── ThreadEndedError          .status: the thread has ended; ask a new question in it instead
│   ├── ThreadBusyError           .status .owner: it has not finished; wait until it has, then try again
│   └── NotWaitingError           .code .decision .by: no approval or parked call waits for this person; list those that do
├── RetrievalError                .source .code: a document cannot be added or searched
│   └── DocumentError             the file has no text, is damaged or too large, or no package reads it; do as it says
├── CalculationError              not arithmetic, or too large; also a ValueError
└── DeliveryError                 .code .address: a message to an actor has no answer; the code says why
    ├── UndeliverableError        no actor has this address; check it, or spawn the actor
    ├── ActorStoppedError         the actor has stopped and accepts no more messages
    ├── MailboxFullError          the mailbox is full; retry later
    ├── ReplyTimeoutError         no answer before the deadline; also a TimeoutError
    ├── WithdrawnError            the caller was cancelled
    ├── HopLimitError             forwarded too often, or a circular request
    ├── BudgetExceededError       .limit: the thread's budget is used up
    ├── RefusedError              .details: the actor answers with an error; handlers may raise it
    ├── ActorFailedError          the handler raised another exception; the supervisor decides
    ├── EffectFailedError         the function of an effect raised an exception
    ├── ParkedError               it waits for a person's decision
    │   └── StoppedError          .cause: a provider, a key, a budget, a limit or a tool server stops it; fix that, then resume
    ├── ToolServerError           .server: a required tool server cannot be used; check it
    ├── HistoryMismatchError      the code does not match the thread's history
    │   └── UnguardedToolError    a tool would start without the toolkit that guards it
    └── EscalatedError            a supervisor gave up
```

A branch is the layer that raises; a leaf tells the caller what to do. Programming mistakes are `ValueError`, `TypeError` and
`RuntimeError`, and a constructor that refuses a value raises Pydantic's `ValidationError`: neither is in the tree.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

__all__ = [
    "ActorFailedError",
    "ActorStoppedError",
    "AntiphonError",
    "AppendConflictError",
    "AppendRefusedError",
    "BudgetExceededError",
    "CalculationError",
    "ConfigError",
    "DecodeError",
    "DeliveryError",
    "DialectError",
    "DocumentError",
    "EffectFailedError",
    "EncodeError",
    "EncryptionError",
    "EscalatedError",
    "FailedError",
    "FencedError",
    "ForgottenError",
    "HistoryMismatchError",
    "HopLimitError",
    "HostError",
    "LedgerCorruptError",
    "LedgerError",
    "LedgerFormatError",
    "LedgerFullError",
    "LedgerUnavailableError",
    "LocalModelError",
    "MailboxFullError",
    "MissingExtraError",
    "MissingKeyError",
    "ModelError",
    "NoMasterKeyError",
    "NotSearchableError",
    "NotWaitingError",
    "OtherRedactionError",
    "OwnedError",
    "ParkedError",
    "PlaceError",
    "RefusedError",
    "ReplyTimeoutError",
    "RestoreRefusedError",
    "RetrievalError",
    "SecretNameError",
    "ServiceError",
    "SettingsError",
    "SetupError",
    "StoppedError",
    "StreamCutError",
    "StreamFailedError",
    "ThreadBusyError",
    "ThreadEndedError",
    "ThreadMovedError",
    "ToolServerError",
    "UndeliverableError",
    "UnguardedToolError",
    "UnknownModelError",
    "UnknownOutcomeError",
    "UnknownThreadError",
    "WithdrawnError",
]


class AntiphonError(Exception):
    """The base class of all errors that antiphon raises on purpose."""

    retryable: bool = False
    """Whether the same operation, unchanged, may succeed later."""


class DialectError(AntiphonError):
    """A conversation cannot be read from or written to a message format."""

    def __init__(self, reason: str, *, dialect: str, where: str = "") -> None:
        super().__init__(reason, dialect, where)
        self.reason = reason
        self.dialect = dialect
        self.where = where
        """The place in the data: a path such as `payload.arguments.limit`, or a line; empty for the whole."""

    def __str__(self) -> str:
        place = f" at {self.where}" if self.where else ""
        return f"{self.dialect}{place}: {self.reason}"

    def __reduce__(self) -> tuple[object, ...]:
        return _revive, (type(self), self.reason, self.dialect, self.where)


class DecodeError(DialectError):
    """The input violates its format. Nothing was read."""


class EncodeError(DialectError):
    """The format cannot express the conversation without a loss, and the caller allowed none."""


class StreamCutError(DialectError):
    """A streamed answer was interrupted before it was complete."""

    retryable = True

    def __init__(self, reason: str, *, dialect: str, where: str = "", opened: tuple[str, ...], state: dict[str, Any]) -> None:
        super().__init__(reason, dialect=dialect, where=where)
        self.opened = opened
        """The pieces that started and are not complete."""
        self.state = state
        """The state for `Stream.resume`: plain JSON."""

    def __reduce__(self) -> tuple[object, ...]:
        return _revive, (type(self), self.reason, self.dialect, self.where, {"opened": self.opened, "state": self.state})


class StreamFailedError(DialectError):
    """The provider reported a failure in the middle of a streamed answer. The reason is the provider's message."""

    def __init__(
        self, reason: str, *, dialect: str, where: str = "", code: str | None = None, retryable: bool = False
    ) -> None:
        super().__init__(reason, dialect=dialect, where=where)
        self.code = code
        """The provider's error code (`overloaded_error`, `503`); None if it sent none."""
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
    """The ledger refused or failed an operation. Earlier acknowledged appends are unaffected."""

    def __init__(self, reason: str, thread_id: str | None = None, *details: object) -> None:
        super().__init__(reason, thread_id, *details)
        self.reason = reason
        self.thread_id = thread_id
        """The thread concerned; None for the ledger as a whole."""

    def __str__(self) -> str:
        return f"thread {self.thread_id!r}: {self.reason}" if self.thread_id is not None else self.reason


class AppendRefusedError(LedgerError):
    """A message violates a rule of every thread, such as a result without its call. Nothing was appended."""

    def __init__(self, reason: str, thread_id: str, code: str, message_id: str) -> None:
        super().__init__(reason, thread_id, code, message_id)
        self.code = code
        """The code of the same rule in `check`."""
        self.message_id = message_id

    def __str__(self) -> str:
        return f"thread {self.thread_id!r}, message {self.message_id!r}: {self.reason} ({self.code})"


class AppendConflictError(LedgerError):
    """The thread has another version than the caller expected. Nothing was appended: read the new messages, then decide."""

    def __init__(self, thread_id: str, expected: int, version: int, hash: str) -> None:
        super().__init__(f"expected version {expected}, but it is at {version}; read the new messages, then decide", thread_id)
        self.args = (thread_id, expected, version, hash)
        self.expected = expected
        self.version = version
        """The current number of messages."""
        self.hash = hash
        """The hash of the last message."""


class FencedError(LedgerError):
    """The caller is not, or no longer, the owner of the thread. Nothing was appended; stop working on the thread."""

    def __init__(self, thread_id: str, used: int | None, epoch: int) -> None:
        claim = "no epoch was given" if used is None else f"epoch {used} was given"
        owner = "it was released" if used == epoch else f"its owner has epoch {epoch}"
        super().__init__(f"{claim}, but {owner}; claim it, or use post", thread_id)
        self.args = (thread_id, used, epoch)
        self.used = used
        """The epoch that the caller gave; None: it gave none."""
        self.epoch = epoch
        """The epoch of the current owner, or of the last one; 0 if the thread was never claimed."""


class ThreadMovedError(FencedError):
    """The thread was moved to another ledger, and continues there. Nothing was changed here."""

    def __init__(self, thread_id: str, to: str) -> None:
        LedgerError.__init__(self, f"it was moved to {to}, and continues there", thread_id)
        self.args = (thread_id, to)
        self.used = None
        self.epoch = 0
        self.to = to
        """The URL of the other ledger."""


class OwnedError(LedgerError):
    """A live host owns the thread. Nothing was changed: post to the thread, or wait until the host releases it."""

    retryable = True

    def __init__(self, thread_id: str, owner: str, until: datetime, advice: str = "post to it, or claim it later") -> None:
        reason = f"host {owner!r} owns it, at least until {until.isoformat(timespec='seconds')}; {advice}"
        super().__init__(reason, thread_id)
        self.args = (thread_id, owner, until, advice)
        self.owner = owner
        """The name of the host."""
        self.until = until
        """When its lease ends, unless it is renewed."""


HostFault: TypeAlias = Literal["UNKNOWN_HOST", "HOST_EXPIRED", "HOST_NAME_TAKEN"]
_HOST_FAULTS: dict[HostFault, str] = {
    "UNKNOWN_HOST": "the ledger does not know this process as a host; call beat first",
    "HOST_EXPIRED": "its lease ended at {until}; call beat, and drop the threads that others have taken",
    "HOST_NAME_TAKEN": "another process has this name, and its lease lasts until {until}; choose another name",
}


class HostError(LedgerError):
    """A process cannot act as the host that it says it is.

    The ledger does not know it, or another process has its name since (UNKNOWN_HOST): call `beat`. Or its lease is over, so
    other hosts may own its threads (HOST_EXPIRED): call `beat`, and drop the threads that it lost. Or another live process has
    its name (HOST_NAME_TAKEN): choose another name, or wait until that lease is over.
    """

    def __init__(self, code: HostFault, host: str, until: datetime | None = None) -> None:
        super().__init__(_HOST_FAULTS[code].format(until=until and until.isoformat(timespec="seconds")))
        self.args = (code, host, until)
        self.code = code
        self.host = host
        """The name of the host."""
        self.until = until
        """When its lease ended, or when that of the other process ends, unless it is renewed."""
        self.retryable = code == "HOST_NAME_TAKEN"

    def __str__(self) -> str:
        return f"host {self.host!r}: {self.reason}"


class OtherRedactionError(LedgerError):
    """The rules of redaction differ from those of the ledger, or cannot be changed now: a live host uses them."""


class RestoreRefusedError(LedgerError):
    """A thread cannot be restored or copied to a ledger: no head proves its rows, or it is there. Nothing was written."""

    def __init__(self, reason: str, thread_id: str | None = None, seq: int | None = None) -> None:
        super().__init__(reason, thread_id, seq)
        self.seq = seq
        """The first row that does not match; None if the error is not about one row."""

    def __str__(self) -> str:
        place = "" if self.seq is None else f" at seq {self.seq}"
        return f"thread {self.thread_id!r}{place}: {self.reason}" if self.thread_id is not None else self.reason


class UnknownThreadError(LedgerError):
    """There is no such thread in this ledger."""


class SecretNameError(LedgerError):
    """A name looks like a secret. Nothing was written: a name is a lookup key, so it cannot be redacted."""

    def __init__(self, what: str) -> None:
        super().__init__(f'{what} looks like a secret; choose another name, or open the ledger with redaction="off"')
        self.args = (what,)
        self.what = what
        """Which name it is, such as "the status of a thread". The error omits the name itself, because errors are logged."""


class LedgerUnavailableError(LedgerError):
    """The store is currently unavailable: locked by another process, out of space, or failing.

    An append that raises this error was applied completely or not at all. Appending the same messages again is safe.
    """

    retryable = True


class LedgerFullError(LedgerUnavailableError):
    """There is no space left on the disk of the store."""


class LedgerCorruptError(LedgerError):
    """The stored data is not the data that was written."""

    def __init__(self, reason: str, thread_id: str | None = None, seq: int | None = None) -> None:
        super().__init__(reason, thread_id, seq)
        self.seq = seq
        """The first changed message; None if unknown."""

    def __str__(self) -> str:
        place = "" if self.seq is None else f" at seq {self.seq}"
        return f"thread {self.thread_id!r}{place}: {self.reason}" if self.thread_id is not None else self.reason


class EncryptionError(LedgerError):
    """A thread or ledger is encrypted, and what was asked for needs its key; or it is not encrypted, and has no key."""

    def __init__(self, reason: str, thread_id: str | None = None, *, code: str = "") -> None:
        super().__init__(reason, thread_id)
        self.code = code
        """WRONG_MASTER_KEY: the given master key is not the one that wraps the keys of the ledger. Nothing was written."""


class NoMasterKeyError(EncryptionError):
    """The ledger was opened without the master key that this thread needs. Nothing was written."""

    def __init__(self, thread_id: str | None = None) -> None:
        advice = "set ANTIPHON_KEY_FILE or ANTIPHON_KEY, or open the ledger with master_key=…"
        what = "it is encrypted" if thread_id is not None else "the ledger is encrypted"
        super().__init__(f"{what}, and no master key is given; {advice}", thread_id)
        self.args = (thread_id,)


class ForgottenError(EncryptionError):
    """The key of the thread was thrown away, so nobody can read its messages any more. Its chain can still be verified."""

    def __init__(self, thread_id: str) -> None:
        super().__init__("its key was forgotten, and its messages cannot be read any more", thread_id)
        self.args = (thread_id,)


class NotSearchableError(EncryptionError):
    """The messages of an encrypted thread are in no index: an index would be readable."""


class LedgerFormatError(LedgerError):
    """The file or database is not a ledger that this version of antiphon can use."""


# ---------------------------------------------------------------- setting up


class SetupError(AntiphonError):
    """The configuration in a program or a file is invalid; the text says what to change."""


class ConfigError(SetupError):
    """`antiphon.toml`, the configuration of a chain or a team file is unreadable, or has an unknown or a wrong key."""


class SettingsError(SetupError):
    """What a thread was run with is not there, has changed, or is not trusted by this user. Nothing was started."""

    def __init__(self, reason: str, option: str) -> None:
        super().__init__(reason, option)
        self.reason = reason
        self.option = option
        """The option of a command by which a person names it."""

    def __str__(self) -> str:
        between = "\n" if "\n" in self.reason else "; "  # a difference of two files ends with a line of its own
        return f"{self.reason}{between}name it with {self.option} to use it"


# ---------------------------------------------------------------- models


class ModelError(AntiphonError):
    """The requested model cannot be used, or its script has no turn for the request."""

    def __init__(self, reason: str, model: str, *details: object, where: str = "") -> None:
        super().__init__(reason, model, *details)
        self.reason = reason
        self.model = model
        self.where = where
        """The place in its script: a path such as `rules.0.when`; empty for the whole."""

    def __str__(self) -> str:
        place = f" at {self.where}" if self.where else ""
        return f"model {self.model!r}{place}: {self.reason}"


class UnknownModelError(ModelError):
    """No model has that name."""

    def __init__(self, reason: str, model: str, nearest: tuple[str, ...] = ()) -> None:
        super().__init__(reason, model, nearest)
        self.nearest = nearest
        """Similar names of existing models, the most similar first."""


class MissingKeyError(ModelError):
    """The provider requires an API key, and none is set."""

    def __init__(self, reason: str, model: str, variables: tuple[str, ...] = ()) -> None:
        super().__init__(reason, model, variables)
        self.variables = variables
        """Environment variables that the provider's client reads the key from."""


class MissingExtraError(ModelError, ModuleNotFoundError):
    """A package that the model needs is not installed."""

    def __init__(self, reason: str, model: str, install: str) -> None:
        super().__init__(reason, model, install)
        self.install = install
        """What to install."""


class LocalModelError(ModelError):
    """The local model's file is missing or not the pinned one, or its server does not run even after a restart."""

    def __init__(self, reason: str, model: str, *, retryable: bool = False) -> None:
        super().__init__(reason, model)
        self.retryable = retryable


# ---------------------------------------------------------------- effects


class FailedError(AntiphonError):
    """Raise it in `run` to fail an effect with a specific code and details: the caller gets a `RefusedError`."""

    def __init__(self, reason: str, code: str, *, details: object = None, retryable: bool = False) -> None:
        super().__init__(reason, code)
        self.reason = reason
        self.code = code
        self.details = details
        self.retryable = retryable


class UnknownOutcomeError(AntiphonError):
    """Raise it in `run` if it is unknown whether the effect happened: an effect that must not repeat is parked."""


class CalculationError(AntiphonError, ValueError):
    """The text is not arithmetic, or is too large to evaluate; the message says why."""


# ---------------------------------------------------------------- documents


class RetrievalError(AntiphonError):
    """A document cannot be added or searched; the text says why, and what to do."""

    def __init__(self, reason: str, source: str = "", *, code: str = "") -> None:
        super().__init__(reason, source)
        self.reason = reason
        self.source = source
        """The document; empty if it is not about one."""
        self.code = code
        """OTHER_EMBEDDER: the stored vectors cannot be compared with those of this embedder."""

    def __str__(self) -> str:
        return f"{self.source}: {self.reason}" if self.source else self.reason


class DocumentError(RetrievalError):
    """A file cannot be read as a document, or the package that reads its format is not installed."""


# ---------------------------------------------------------------- the service


class ServiceError(AntiphonError):
    """A command, or a request of a server, cannot do what was asked; the text says why, and what to do instead."""

    def __init__(self, reason: str, thread_id: str | None = None, *details: object, code: str = "") -> None:
        super().__init__(reason, thread_id, *details)
        self.reason = reason
        self.thread_id = thread_id
        """The thread that it is about; None if it is not about one."""
        self.code = code
        """BUDGET_NEEDED: the thread has spent its budget, and goes on with a new one. OTHER_PATTERN: this works only for
        threads of another pattern. OWN_PROGRAM: only the thread's own program has its tools, and continues it."""

    def __str__(self) -> str:
        return self.reason


class PlaceError(ServiceError):
    """The thread has no such message, step or phase, or does not continue from there; or the ledger has no such cursor."""


class ThreadEndedError(ServiceError):
    """The thread has completed, failed or was terminated: it cannot be resumed."""

    def __init__(self, reason: str, thread_id: str, status: str) -> None:
        super().__init__(reason, thread_id, status)
        self.status = status


class ThreadBusyError(ServiceError):
    """The thread has not finished what it was asked before. Wait for that, or resume it; then ask again."""

    def __init__(self, reason: str, thread_id: str, status: str, owner: str | None = None) -> None:
        super().__init__(reason, thread_id, status, owner)
        self.status = status
        self.owner = owner
        """The name of the host that runs it; None if none does."""


class NotWaitingError(ServiceError):
    """No such approval or parked call waits, or not for this person.

    `code` is ALREADY_ANSWERED if the approval has its answer, which counts: another answer changes nothing. It is EXPIRED if
    nobody has answered in time: the program asks again if it calls the tool again. It is NOT_APPROVER if this person may not
    answer it; the text says who may.
    """

    def __init__(
        self, reason: str, thread_id: str | None = None, *, code: str = "", decision: str | None = None, by: str | None = None
    ) -> None:
        super().__init__(reason, thread_id, code=code)
        self.decision = decision
        """`approved` or `denied`, if it has its answer."""
        self.by = by
        """The person who answered."""


# ---------------------------------------------------------------- delivery


class DeliveryError(AntiphonError):
    """A message did not get its answer; the code says why.

    The ledger stores the same error as an error result with that code. After a crash it is raised again from there.
    """

    code: str = "DELIVERY_ERROR"
    """The code in an error response."""

    def __init__(self, reason: str, address: str | None = None) -> None:
        super().__init__(reason, address)
        self.reason = reason
        self.address = address
        """The actor that the message was for."""
        self.message_id: str | None = None
        """The id of the message, if it has one that a RETRY can refer to."""

    def __str__(self) -> str:
        return self.reason if self.address is None else f"{self.address}: {self.reason}"


class UndeliverableError(DeliveryError):
    """No actor has the address, and no factory is registered for its kind."""

    code = "ACTOR_NOT_FOUND"


class ActorStoppedError(DeliveryError):
    """The actor has stopped; its unhandled messages are dead letters."""

    code = "ACTOR_STOPPED"


class MailboxFullError(DeliveryError):
    """The mailbox had no room before the deadline. Nothing was delivered."""

    code = "MAILBOX_FULL"
    retryable = True


class ReplyTimeoutError(DeliveryError, TimeoutError):
    """The deadline has passed. The actor's work on the message was cancelled."""

    code = "TIMEOUT"
    retryable = True


class WithdrawnError(DeliveryError):
    """The caller was cancelled, and its request with it."""

    code = "CANCELLED"
    retryable = True


class HopLimitError(DeliveryError):
    """The chain of messages is too long, or the request is circular: its receiver waits for its answer."""

    code = "HOP_LIMIT"


class BudgetExceededError(DeliveryError):
    """The thread's budget of messages, tokens or money is used up."""

    code = "BUDGET_EXCEEDED"
    limit: str | None = None
    """The limit of an `AgentBudget` that is reached, as `20 requests`; None for other budgets. A new budget lets it go on."""


class RefusedError(DeliveryError):
    """An error that an actor answers with. A handler that raises it has answered; it has not failed."""

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
    """The actor's handler raised an exception: `__cause__`, if it happened in this process."""

    code = "ACTOR_FAILED"


class EffectFailedError(DeliveryError):
    """The function of an effect raised an exception. The outcome is recorded: a replayed handler gets the same."""

    code = "EFFECT_FAILED"
    details: object = None
    """More about it, as JSON."""


class ParkedError(DeliveryError):
    """The message or effect waits for a person's decision.

    Either it crashed its actor too often, or it is unknown whether an effect that must not repeat has happened.
    """

    code = "PARKED"


class StoppedError(ParkedError):
    """Something outside failed: a provider, a key, a spent budget, a tool server. The call stays open, and can be resumed.

    The failed attempt is a row beside the call. Put right what failed, then resume the thread, or do the same task in it
    again. With the cause LIMIT_REACHED, a limit of model requests for all hosts is reached: the money of the day is spent, or
    no permit was free in time. Resume the thread later, or set another limit (`antiphon limits`).
    """

    code = "STOPPED"

    def __init__(self, reason: str, address: str | None = None, *, cause: str = "STOPPED", row: str | None = None) -> None:
        super().__init__(reason, address)
        self.cause = cause
        """The code of what failed, such as AGENT_ERROR or BUDGET_EXCEEDED."""
        self.row = row
        """The row of the thread that says so; None before it is written."""


class ToolServerError(DeliveryError):
    """A tool server that a toolkit requires is unusable, or offers invalid tools. The reason says what to do."""

    code = "TOOL_SERVER_FAILED"
    retryable = True

    @property
    def server(self) -> str:
        """The toolkit's name for the server."""
        return self.address or ""


class HistoryMismatchError(DeliveryError):
    """A replayed handler does not match the thread's history. Restore the old code, or settle the message."""

    code = "HISTORY_MISMATCH"


class UnguardedToolError(HistoryMismatchError):
    """The thread was started with a toolkit, and this program would run one of its tools without it. Nothing was started.

    Give the agent the toolkit again. Pending approvals stay pending.
    """

    code = "UNGUARDED_TOOL"


class EscalatedError(DeliveryError):
    """A supervisor reached its restart limit and escalates the failure."""

    code = "ESCALATED"

"""The API: a table of endpoints, each with its scope and its typed values, and the handlers, which call `antiphon.service`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, cast

from antiphon import __version__, service
from antiphon.dialects import names as dialect_names
from antiphon.errors import PlaceError
from antiphon.ledger import ThreadFilter
from antiphon.messages._names import is_name
from antiphon.server import _values as v
from antiphon.server._access import Access, Caller, RequestKeys
from antiphon.server._answers import Problem

if TYPE_CHECKING:
    from antiphon.ledger import Ledger
    from antiphon.server._running import Runs
    from antiphon.service import (
        ApprovalValue,
        ClusterValue,
        DiffValue,
        EncodedValue,
        EventCursors,
        IndexValue,
        OverviewBook,
        OverviewValue,
        RerunValue,
        Scope,
        ServedModels,
        StatusValue,
        ThreadPageValue,
        ThreadText,
        ThreadValue,
    )

SYSTEM: Final = "system/"
_MOST_COMPARED: Final = 1000
_LONGEST_TITLE: Final = 200
HIDDEN: Final = frozenset({service.TOKENS_THREAD, service.IDENTITY_THREAD})
"""Threads that no token may read: the digests of tokens, and the name of the ledger."""


@dataclass(frozen=True, slots=True)
class Hub:
    """What all requests share."""

    ledger: Ledger
    access: Access
    runs: Runs
    cursors: EventCursors
    book: OverviewBook
    live_text: ThreadText
    models: ServedModels
    keys: RequestKeys


@dataclass(frozen=True, slots=True)
class Ask:
    """A request whose caller may make it, with its parts checked."""

    hub: Hub
    caller: Caller
    path: dict[str, str]
    query: Any
    body: Any
    headers: dict[bytes, bytes]

    @property
    def ledger(self) -> Ledger:
        return self.hub.ledger

    @property
    def thread_id(self) -> str:
        return self.path["thread_id"]


@dataclass(frozen=True, slots=True)
class Lines:
    """An answer that is written line by line."""

    lines: AsyncIterator[bytes]
    kind: str = "application/x-ndjson"


@dataclass(frozen=True, slots=True)
class WithHeaders:
    """An answer with further headers."""

    value: Any
    headers: dict[str, str]
    status: int | None = None
    """None: the one of the endpoint."""


Handler: TypeAlias = Callable[[Ask], Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class ApiEndpoint:
    """One thing that can be asked."""

    method: Literal["GET", "POST", "DELETE"]
    path: str
    scope: Scope | None
    """What the token must allow; None: any token, or in `POST /api/session` none."""
    about: str
    handler: Handler
    returns: Any
    query: type[v.RequestValue] = v.NoQuery
    body: type[v.RequestValue] | None = None
    status: int = 200
    errors: Any = v.ProblemValue
    """What an error has."""

    @property
    def steps(self) -> tuple[str, ...]:
        return tuple(self.path.strip("/").split("/"))


# ---------------------------------------------------------------- sessions


async def _who(ask: Ask) -> v.SessionValue:
    return v.SessionValue.model_validate(ask.caller.token)


async def _new_code(ask: Ask) -> v.CodeValue:
    return v.CodeValue(code=ask.hub.access.new_code(ask.caller))


async def _end_session(ask: Ask) -> WithHeaders:
    return WithHeaders(v.DoneValue(), {"set-cookie": ask.hub.access.end_session(ask.headers)})


# ---------------------------------------------------------------- threads


async def _threads(ask: Ask) -> ThreadPageValue:
    query: v.ThreadQuery = ask.query
    names = set(ThreadFilter.__dataclass_fields__) & set(v.ThreadQuery.model_fields) - {"system"}
    selection = ThreadFilter(system=None if query.system else False, **{name: getattr(query, name) for name in names})
    of_model = None if query.model is None else ask.hub.book.threads_of(query.model)
    page = await service.list_page(ask.ledger, selection, query.order, query.page, query.limit)
    shown = _shown(page, of_model)
    while of_model is not None and len(shown) < query.limit and page.next is not None:
        page = await service.list_page(ask.ledger, selection, query.order, page.next, query.limit)
        shown += _shown(page, of_model)
    if query.titles:
        shown = [await _titled(ask, thread) for thread in shown]
    return service.ThreadPageValue.model_construct(threads=tuple(shown), next=page.next)


def _shown(page: ThreadPageValue, among: frozenset[str] | None) -> list[ThreadValue]:
    visible = (thread for thread in page.threads if thread.thread_id not in HIDDEN)
    return [thread for thread in visible if among is None or thread.thread_id in among]


async def _titled(ask: Ask, thread: ThreadValue) -> ThreadValue:
    title = await service.question_of(ask.ledger, thread.thread_id, messages=thread.messages)
    return thread if title is None else thread.model_copy(update={"title": title[:_LONGEST_TITLE]})


async def _one(ask: Ask) -> ThreadValue:
    return await service.with_open_runs(ask.ledger, await service.find_thread(ask.ledger, ask.thread_id))


def _check_name(name: str | None) -> None:
    """Refuse what is no name, and the names of the system, for new threads."""
    if name is not None and not is_name(name):
        raise PlaceError(f"the id of a thread has 1 to 512 visible characters, not {name!r}", None)
    for prefix in (SYSTEM, service.EXCHANGE):
        if name is not None and name.startswith(prefix):
            raise PlaceError(f"names that begin with {prefix!r} are the system's; choose another one", name)


async def _create(ask: Ask) -> v.StartedValue:
    body: v.NewThread = ask.body
    _check_name(body.thread_id)
    by = ask.caller.token.principal
    team = None if body.team is None else ask.hub.models.find(body.team)
    if body.team is not None and (team is None or team.team is None):
        raise Problem(422, "not_valid", f"team: this server has no team {body.team!r}; serve --team FILE gives it one")
    path = None if team is None else team.team
    started = await ask.hub.runs.ask(body.question, by=by, name=body.thread_id, model=body.model, team=path)
    return v.StartedValue(thread_id=started)


async def _continue(ask: Ask) -> v.StartedValue:
    body: v.NewTurn = ask.body
    by = ask.caller.token.principal
    started = await ask.hub.runs.ask(body.question, by=by, thread_id=ask.thread_id, model=body.model)
    return v.StartedValue(thread_id=started)


async def _status(ask: Ask) -> StatusValue:
    status = await service.thread_status(ask.ledger, ask.thread_id)
    return status.model_copy(update={"question": await service.question_of(ask.ledger, ask.thread_id)})


async def _pause(ask: Ask) -> v.MovedValue:
    return v.MovedValue(response=await service.pause_thread(ask.ledger, ask.thread_id))


async def _resume(ask: Ask) -> v.StartedValue:
    await service.find_thread(ask.ledger, ask.thread_id)
    body: v.Resume = ask.body
    return v.StartedValue(thread_id=await ask.hub.runs.resume(ask.thread_id, model=body.model))


async def _terminate(ask: Ask) -> v.MovedValue:
    body: v.Terminate = ask.body
    return v.MovedValue(response=await service.terminate_thread(ask.ledger, ask.thread_id, body.reason))


async def _fork(ask: Ask) -> ThreadValue:
    body: v.Fork = ask.body
    _check_name(body.into)
    place = service.ForkPlace(ask.thread_id, body.at, body.at_step, body.into)
    if body.go_on:
        await service.check_chain(ask.ledger, ask.thread_id)
        branch = await ask.hub.runs.fork(place, model=body.model)
    else:
        branch = (await service.fork_thread(ask.ledger, place)).thread_id
    return await service.with_open_runs(ask.ledger, await service.find_thread(ask.ledger, branch))


async def _delete(ask: Ask) -> v.DeletedValue:
    query: v.Deletion = ask.query
    doomed = [thread.thread_id for thread in await service.with_branches(ask.ledger, [ask.thread_id])]
    if len(doomed) > 1 and not query.with_branches:
        raise Problem(409, "has_branches", f"{len(doomed) - 1} branches share its messages; delete them too, or keep it")
    gone = [thread_id async for thread_id in service.delete_threads(ask.ledger, doomed[::-1])]
    return v.DeletedValue(deleted=tuple(gone))


# ---------------------------------------------------------------- messages


async def _messages(ask: Ask) -> v.MessagePageValue | EncodedValue:
    query: v.MessageQuery = ask.query
    window = await service.read_window(
        ask.ledger, ask.thread_id, query.after, query.before, reverse=query.reverse, limit=query.limit
    )
    if query.dialect is None:
        records = tuple(map(service.RecordValue.of, window.records))
        return v.MessagePageValue.model_construct(messages=records, next=window.next)
    in_order = window.records[::-1] if query.reverse else window.records
    return service.encode_window(in_order, service.ExportForm(query.dialect, query.as_policy))


async def _export(ask: Ask) -> Lines:
    query: v.ExportQuery = ask.query
    thread = await service.find_thread(ask.ledger, ask.thread_id)
    return Lines(service.export_lines(ask.ledger, thread, service.ExportForm(query.dialect, query.as_policy)))


async def _search(ask: Ask) -> v.HitsValue:
    query: v.SearchQuery = ask.query
    hits = await service.search_threads(ask.ledger, query.q, thread_id=query.thread_id, limit=query.limit)
    shown = [hit for hit in hits if service.thread_of(hit.record) not in HIDDEN]
    values = [service.HitValue.of(hit) for hit in shown]
    unsearched = await service.unsearched_threads(ask.ledger) if query.thread_id is None else 0
    return v.HitsValue.model_construct(hits=tuple(values), unsearched=unsearched)


async def _index(ask: Ask) -> IndexValue:
    return await service.thread_index(ask.ledger, ask.thread_id, after=ask.query.after, limit=ask.query.limit)


async def _choices(ask: Ask) -> v.ChoicesValue:
    return v.ChoicesValue(models=ask.hub.runs.offer.names, model=ask.hub.runs.offer.model, dialects=dialect_names())


async def _sequence(ask: Ask) -> v.WindowValue:
    window = await service.sequence(ask.ledger, ask.thread_id, after=ask.query.after, limit=ask.query.limit)
    return v.WindowValue(window={"participants": window.participants, "steps": window.steps, "next": window.next})


async def _timeline(ask: Ask) -> v.WindowValue:
    window = await service.timeline(ask.ledger, ask.thread_id, after=ask.query.after, limit=ask.query.limit)
    return v.WindowValue(window={"workers": window.workers, "spans": window.spans, "next": window.next})


# ---------------------------------------------------------------- branches


async def _diff(ask: Ask) -> DiffValue:
    difference = await service.compare_threads(ask.ledger, ask.thread_id, ask.path["other"])
    return service.DiffValue.of(difference.messages, difference.phases, _MOST_COMPARED)


async def _replay(ask: Ask) -> v.ReplayValue:
    events = await service.replay_thread(ask.ledger, ask.thread_id)
    return v.ReplayValue.model_construct(
        events=tuple(service.ReplayedValue.of(replayed.at, replayed.event) for replayed in events)
    )


async def _rerun(ask: Ask) -> RerunValue:
    await service.check_chain(ask.ledger, ask.thread_id)
    (report,) = await service.rerun_threads(ask.ledger, ask.thread_id)
    return report


# ---------------------------------------------------------------- what waits for a person


async def _approvals(ask: Ask) -> v.ApprovalsValue:
    return v.ApprovalsValue(approvals=await service.list_approvals(ask.ledger))


async def _answer(ask: Ask) -> ApprovalValue:
    body: v.ApprovalAnswer = ask.body
    own_id = ask.path["approval_id"]
    waiting = await service.open_approval(ask.ledger, own_id)
    if waiting is not None and waiting.digest != body.digest:
        raise Problem(409, "other_call", "this approval is for another call than the one that was shown; look at it again")
    # Whether it waits at all, and for this principal, is decided where the answer is written.
    return await service.answer_approval(
        ask.ledger, own_id, principal=ask.caller.token.principal, approved=body.approved, reason=body.reason
    )


async def _parked(ask: Ask) -> v.ParkedListValue:
    return v.ParkedListValue(parked=await service.list_parked(ask.ledger))


async def _settle(ask: Ask) -> v.DoneValue:
    body: v.CallSettlement = ask.body
    outcome = {"result", "error", "retry"} & body.model_fields_set
    if len(outcome) != 1 or (outcome == {"retry"} and not body.retry) or (outcome == {"error"} and body.error is None):
        raise Problem(422, "bad_body", "give exactly one of result, error and retry")
    await service.settle_call(
        ask.ledger,
        ask.thread_id,
        ask.path["invocation_id"],
        result=cast("Any", body.result),
        error=body.error,
        retry=body.retry,
    )
    return v.DoneValue()


# ---------------------------------------------------------------- hosts, actors, health


async def _hosts(ask: Ask) -> v.HostsValue:
    return v.HostsValue(hosts=await service.list_hosts(ask.ledger, with_ended=True))


async def _cluster(ask: Ask) -> ClusterValue:
    return await service.cluster_status(ask.ledger)


async def _actors(ask: Ask) -> v.ActorsValue:
    actors = [service.ActorValue.model_validate(actor) for runner in ask.hub.runs.runners() for actor in runner.actors()]
    return v.ActorsValue(actors=tuple(actors))


async def _dead_letters(ask: Ask) -> v.DeadLettersValue:
    return v.DeadLettersValue(letters=tuple(map(service.DeadLetterValue.of, ask.hub.runs.dead_letters())))


async def _health(ask: Ask) -> v.HealthValue:
    await ask.ledger.horizon()  # an error of the ledger is the answer
    return v.HealthValue(
        status="ok", version=__version__, ledger=ask.hub.cursors.name, streams=ask.hub.access.streams, runs=len(ask.hub.runs)
    )


async def _overview(ask: Ask) -> OverviewValue:
    return await ask.hub.book.overview()


async def _metrics(ask: Ask) -> str:
    """Return the sums in the text format of Prometheus."""
    overview = await ask.hub.book.overview()
    samples: dict[str, list[tuple[dict[str, str], object]]] = {
        "antiphon_messages_total": [({}, overview.total.messages)],
        "antiphon_errors_total": [({}, overview.total.errors)],
        "antiphon_model_requests_total": [({"model": name}, sums.requests) for name, sums in overview.by_model.items()],
        "antiphon_input_tokens_total": [({"model": name}, sums.input_tokens) for name, sums in overview.by_model.items()],
        "antiphon_output_tokens_total": [({"model": name}, sums.output_tokens) for name, sums in overview.by_model.items()],
        "antiphon_cost_dollars_total": [({"model": name}, f"{sums.cost:f}") for name, sums in overview.by_model.items()],
        "antiphon_model_answers_total": [({"model": name}, sums.answered) for name, sums in overview.by_model.items()],
        "antiphon_model_seconds_total": [({"model": name}, sums.seconds) for name, sums in overview.by_model.items()],
        "antiphon_threads": [({"status": name}, count) for name, count in sorted(overview.threads.items())],
        "antiphon_server_streams": [({}, ask.hub.access.streams)],
        "antiphon_server_runs": [({}, len(ask.hub.runs))],
    }
    lines: list[str] = []
    for name, values in samples.items():
        lines.append(f"# TYPE {name} {'counter' if name.endswith('_total') else 'gauge'}")
        lines += [f"{name}{_labels(labels)} {value}" for labels, value in values]
    return "\n".join((*lines, ""))


def _labels(labels: dict[str, str]) -> str:
    """Return labels as Prometheus writes them."""
    escaped = {name: text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") for name, text in labels.items()}
    return "{%s}" % ",".join(f'{name}="{text}"' for name, text in escaped.items()) if labels else ""  # noqa: UP031


async def answered_before(_: Ask) -> None:
    """Stand in the table for a handler: the server answers such an endpoint before it looks into the table."""
    raise RuntimeError("answered before the table is asked")


_THREADS: Final = "/api/threads"
_THREAD: Final = "/api/threads/{thread_id}"
ENDPOINTS: Final = (
    ApiEndpoint("GET", "/api/session", None, "Who this token or session belongs to", _who, v.SessionValue),
    ApiEndpoint("DELETE", "/api/session", None, "End the session", _end_session, v.DoneValue),
    ApiEndpoint("POST", "/api/codes", None, "Make a one-time code for a session", _new_code, v.CodeValue, body=v.NoQuery),
    ApiEndpoint("GET", _THREADS, "read", "List threads", _threads, service.ThreadPageValue, v.ThreadQuery),
    ApiEndpoint("POST", _THREADS, "send", "Ask in a new thread", _create, v.StartedValue, body=v.NewThread, status=202),
    ApiEndpoint("GET", _THREAD, "read", "A thread", _one, service.ThreadValue),
    ApiEndpoint("DELETE", _THREAD, "admin", "Delete a thread permanently", _delete, v.DeletedValue, v.Deletion),
    ApiEndpoint("POST", f"{_THREAD}/turns", "send", "Ask again in it", _continue, v.StartedValue, body=v.NewTurn, status=202),
    ApiEndpoint("GET", f"{_THREAD}/status", "read", "Where it is", _status, service.StatusValue),
    ApiEndpoint("POST", f"{_THREAD}/pause", "control", "Pause it", _pause, v.MovedValue, body=v.NoQuery),
    ApiEndpoint("POST", f"{_THREAD}/resume", "control", "Continue it", _resume, v.StartedValue, body=v.Resume, status=202),
    ApiEndpoint("POST", f"{_THREAD}/terminate", "control", "End it permanently", _terminate, v.MovedValue, body=v.Terminate),
    ApiEndpoint("POST", f"{_THREAD}/fork", "send", "Make a branch", _fork, service.ThreadValue, body=v.Fork, status=201),
    ApiEndpoint("GET", f"{_THREAD}/diff/{{other}}", "read", "Compare it with another", _diff, service.DiffValue),
    ApiEndpoint("GET", f"{_THREAD}/replay", "read", "What happened in it", _replay, v.ReplayValue),
    ApiEndpoint(
        "POST", f"{_THREAD}/rerun", "control", "Run it again on this code", _rerun, service.RerunValue, body=v.NoQuery
    ),
    ApiEndpoint("GET", f"{_THREAD}/export", "read", "As JSON Lines", _export, Lines, v.ExportQuery),
    ApiEndpoint(
        "GET",
        f"{_THREAD}/messages",
        "read",
        "A window of messages; with `as`, in another format",
        _messages,
        v.MessagePageValue | service.EncodedValue,
        v.MessageQuery,
    ),
    ApiEndpoint(
        "GET", f"{_THREAD}/index", "read", "A few numbers for each message", _index, service.IndexValue, v.WindowQuery
    ),
    ApiEndpoint("GET", f"{_THREAD}/sequence", "read", "As a sequence diagram", _sequence, v.WindowValue, v.WindowQuery),
    ApiEndpoint("GET", f"{_THREAD}/timeline", "read", "As a timeline", _timeline, v.WindowValue, v.WindowQuery),
    ApiEndpoint("GET", "/api/search", "read", "Find messages by words", _search, v.HitsValue, v.SearchQuery),
    ApiEndpoint("GET", "/api/approvals", "read", "Calls that wait for an approval", _approvals, v.ApprovalsValue),
    ApiEndpoint(
        "POST", "/api/approvals/{approval_id}", "control", "Answer one", _answer, service.ApprovalValue, body=v.ApprovalAnswer
    ),
    ApiEndpoint("GET", "/api/parked", "read", "Calls with an unknown outcome", _parked, v.ParkedListValue),
    ApiEndpoint(
        "POST",
        "/api/parked/{thread_id}/{invocation_id}",
        "control",
        "Record an outcome",
        _settle,
        v.DoneValue,
        body=v.CallSettlement,
    ),
    ApiEndpoint("GET", "/api/choices", "read", "Names of models and formats", _choices, v.ChoicesValue),
    ApiEndpoint("GET", "/api/hosts", "read", "Processes that run threads", _hosts, v.HostsValue),
    ApiEndpoint("GET", "/api/cluster", "read", "The hosts together, and what waits for them", _cluster, service.ClusterValue),
    ApiEndpoint("GET", "/api/actors", "read", "Actors of this server", _actors, v.ActorsValue),
    ApiEndpoint("GET", "/api/dead-letters", "read", "Messages that nobody handled", _dead_letters, v.DeadLettersValue),
    ApiEndpoint("GET", "/api/overview", "read", "Sums over threads, time and models", _overview, service.OverviewValue),
    ApiEndpoint("GET", "/api/metrics", "read", "The sums for Prometheus", _metrics, "text/plain; version=0.0.4"),
    ApiEndpoint("GET", "/api/health", "read", "Whether the server works", _health, v.HealthValue),
)

"""The typed outputs of the six agents, and their checks.

A model gives its output in the way of its profile: with an output tool, with a JSON schema, or as JSON in text. Each form has
one text field, which comes first, so that it can be shown while it arrives. The other fields are the agent's judgement, and
optional: where an agent leaves one out, code decides. A phase records in its output who decided: `by` is `agent` or `code`.

Code checks a judgement. A source is named by its number in the prompt, or by its id; numbers become ids here, once. If an
output names a source that was not given, or has a quote that no source contains, the model gets that error and is asked again.
After the last attempt, only the wrong entries are dropped, and reported. An answer without the form, such as plain text,
counts as text: then code decides. So an agent whose output never validates costs a bounded number of requests.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, TypeAlias, TypeVar, cast

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic_ai import ModelRetry, RunContext
from pydantic_ai.output import OutputContext
from pydantic_core import from_json, to_json, to_jsonable_python
from typing_extensions import override

from antiphon.agents import LedgerDurability
from antiphon.messages import thaw
from antiphon.protocol import PHASES, AgentResult, Phase

TYPED: Final = 1
"""The version of the forms. A thread records it, as `outputs` of an agent's configuration; without it, an agent gives text."""

OUTPUT_TOOL: Final = "final_result"
"""What Pydantic AI calls the tool by which a model gives its output."""

By: TypeAlias = Literal["agent", "code"]
"""Who decided."""

_Share = Annotated[float, Field(ge=0, le=1)]


def _as_name(value: Any) -> Any:
    return str(value) if isinstance(value, int) else value


_Name = Annotated[str, BeforeValidator(_as_name)]
"""The number of a source in the prompt, or its id."""


# ---------------------------------------------------------------- the forms


class _Form(BaseModel):
    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)


class ActionOutput(_Form):
    """Your first answer."""

    response: str
    """The answer to the user's question, in a few sentences."""
    confidence: _Share | None = None
    """How sure you are that the answer is right and complete, from 0 to 1."""


class ExperienceOutput(_Form):
    """What the sources say about the question."""

    synthesis: str
    """What the sources have to do with the question, in a few sentences, with marks such as [1]."""
    used: tuple[_Name, ...] = ()
    """The numbers of the sources that you rely on."""
    missing: str | None = None
    """What the sources do not say and the answer needs, as words to search for; null if nothing is missing."""


class SourceScore(_Form):
    """How much one source serves the goals."""

    source: _Name
    """The number of the source."""
    score: _Share
    """From 0, beside the point, to 1, exactly what is needed."""
    reason: str = ""
    """Why, in a few words."""


class IntentionOutput(_Form):
    """What the user wants to achieve."""

    summary: str
    """What the user wants, and what is ambiguous in the question, in one or two sentences."""
    goals: tuple[str, ...] = Field(default=(), max_length=20)
    """The goals, one short sentence each, the most important one first."""
    scores: tuple[SourceScore, ...] = ()
    """A score for each source."""


class SourceLink(_Form):
    """How one source is related to the question."""

    source: _Name
    """The number of the source."""
    relationship: str
    """A few words, such as `answers` or `contradicts`."""
    strength: _Share
    """From 0, hardly, to 1, entirely."""


class ObservationOutput(_Form):
    """What later threads should know."""

    notes: str
    """What is worth remembering, in short sentences."""
    entities: tuple[str, ...] = Field(default=(), max_length=50)
    """The names of the things that the question and its sources are about."""
    links: tuple[SourceLink, ...] = ()
    """The sources that matter, and how."""


class SourceReason(_Form):
    """Why one source is kept or released."""

    source: _Name
    """The number of the source."""
    reason: str
    """Why, in a few words."""


class UnderstandingOutput(_Form):
    """What is kept, and what is released."""

    summary: str
    """What is known so far, and where sources contradict each other, in a few sentences."""
    keep: tuple[_Name, ...] = ()
    """The numbers of the sources that the answer needs."""
    release: tuple[_Name, ...] = ()
    """The numbers of the sources that it does not need."""
    reasons: tuple[SourceReason, ...] = ()
    """Why each of these sources is released."""


class SourceQuote(_Form):
    """The words of a source that the answer rests on."""

    source: _Name
    """The number of the source."""
    text: str
    """One or two sentences of the source, word for word."""


class YieldOutput(_Form):
    """The final answer, or what is needed for it."""

    answer: str
    """The answer to the user's question, with a mark such as [1] after each statement that rests on a source."""
    confidence: _Share | None = None
    """How sure you are that the answer is right and complete, from 0 to 1."""
    quotes: tuple[SourceQuote, ...] = ()
    """For each source that you mark, the words that the answer rests on."""
    next_phase: Phase | None = None
    """The phase to go through again, if the answer is not good enough yet; otherwise null."""
    search_for: str | None = None
    """What to search for then, in a few words; otherwise null."""


FORMS: Final[Mapping[Phase, type[BaseModel]]] = dict(
    zip(
        PHASES,
        (ActionOutput, ExperienceOutput, IntentionOutput, ObservationOutput, UnderstandingOutput, YieldOutput),
        strict=True,
    )
)
TEXT_FIELDS: Final[Mapping[Phase, str]] = {phase: next(iter(form.model_fields)) for phase, form in FORMS.items()}
"""By phase, the field with the text of its answer: the first one."""

FormT = TypeVar("FormT", bound=BaseModel)


# ---------------------------------------------------------------- the sources of a prompt


@dataclass(frozen=True, slots=True)
class NumberedSources:
    """The sources in a prompt, in the order of their numbers."""

    ids: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()

    @classmethod
    def read(cls, prompt: str, places: Iterable[Iterable[Any]]) -> NumberedSources:
        """Return the sources of a prompt; a place is an id, and the start and the end of its text in the prompt."""
        spans = [tuple(place) for place in places]
        return cls(tuple(str(name) for name, _, _ in spans), tuple(prompt[begin:end] for _, begin, end in spans))

    def id_of(self, name: str) -> str | None:
        """Return the id of a source by its number, such as `1` or `[1]`, or by its id; None if it was not given."""
        if name in self.ids:
            return name
        number = name.strip().strip("[]").strip()
        if number.isascii() and number.isdigit() and 0 < int(number[:9]) <= len(self.ids):
            return self.ids[int(number[:9]) - 1]
        return None

    def says(self, source: str, quote: str) -> bool:
        """Whether a source, by id, has a quote word for word; line breaks count as spaces."""
        words = " ".join(quote.split())
        return bool(words) and words in " ".join(self.texts[self.ids.index(source)].split())


# ---------------------------------------------------------------- the checks


@dataclass(slots=True)
class _Problems:
    """The problems of an output."""

    sources: NumberedSources
    texts: list[str]

    def named(self, name: str, where: str) -> str | None:
        """Return the id of a source; None, and a problem, if it was not given."""
        source = self.sources.id_of(name)
        if source is None and name.startswith("user"):
            self.texts.append(f"{where}: the words of the user are no source, and are never released")
        elif source is None:
            self.texts.append(f"{where}: there is no source {name!r}; {_numbers(len(self.sources.ids))}")
        return source

    def names(self, names: Iterable[str], where: str) -> tuple[str, ...]:
        return tuple(dict.fromkeys(source for name in names if (source := self.named(name, where)) is not None))

    def parts(self, parts: Iterable[FormT], where: str) -> tuple[FormT, ...]:
        """Return parts about a source with its id, without parts about sources that were not given."""
        by_source: dict[str, FormT] = {}
        for part in parts:
            source = self.named(cast("Any", part).source, where)
            if source is not None:
                by_source.setdefault(source, part.model_copy(update={"source": source}))
        return tuple(by_source.values())


def _numbers(number: int) -> str:
    return "there are none" if not number else "there is [1]" if number == 1 else f"there are [1] to [{number}]"


def checked(output: BaseModel, sources: NumberedSources) -> tuple[BaseModel, tuple[str, ...]]:
    """Return an output with the ids of its sources and without its wrong entries, and the problems of those."""
    problems = _Problems(sources, [])
    match output:
        case ExperienceOutput():
            update: dict[str, Any] = {"used": problems.names(output.used, "used")}
        case IntentionOutput():
            update = {"scores": problems.parts(output.scores, "scores")}
        case ObservationOutput():
            update = {"links": problems.parts(output.links, "links")}
        case UnderstandingOutput():
            keep, release = problems.names(output.keep, "keep"), problems.names(output.release, "release")
            problems.texts += [f"release: {name} is kept too" for name in release if name in keep]
            release = tuple(name for name in release if name not in keep)
            update = {"keep": keep, "release": release, "reasons": problems.parts(output.reasons, "reasons")}
        case YieldOutput():
            update = {"quotes": _quoted(output, problems)}
        case _:
            update = {}
    return output.model_copy(update=update), tuple(problems.texts)


def _quoted(output: YieldOutput, problems: _Problems) -> tuple[SourceQuote, ...]:
    """Return the quotes that their sources have word for word."""
    quotes: list[SourceQuote] = []
    for quote in problems.parts(output.quotes, "quotes"):
        if problems.sources.says(quote.source, quote.text):
            quotes.append(quote)
        else:
            number = problems.sources.ids.index(quote.source) + 1
            problems.texts.append(f"quotes: source [{number}] does not say {quote.text[:80]!r}; quote it word for word")
    return tuple(quotes)


# ---------------------------------------------------------------- the request for a form


@dataclass(frozen=True, slots=True)
class PlainAnswer:
    """An answer without the requested form."""

    text: str


@dataclass(slots=True)
class FormRequest:
    """The form that an agent must give, and the final problems of its output."""

    phase: Phase
    sources: NumberedSources
    is_choice: bool = False
    """Whether the agent only chooses a source."""
    problems: tuple[str, ...] = ()
    is_checked: bool = False
    """Whether the last output was checked: an agent of the program may have another durability."""


_asked: ContextVar[FormRequest | None] = ContextVar("antiphon_phase_form", default=None)


@contextmanager
def asking_for_form(request: FormRequest | None) -> Generator[None]:
    """Check the outputs of an agent that runs in this block; None: it gives text."""
    token = _asked.set(request)
    try:
        yield
    finally:
        _asked.reset(token)


class CheckedDurability(LedgerDurability[Any]):
    """Durability with checks of a phase's output: the model is asked again if allowed, then only valid entries count."""

    @override
    async def on_output_validate_error(
        self, ctx: RunContext[Any], *, output_context: OutputContext, output: Any, error: ValidationError | ModelRetry
    ) -> Any:
        request = _asked.get()
        output_type = output_context.output_type
        if request is None or not isinstance(output_type, type) or not issubclass(output_type, FORMS[request.phase]):
            raise error
        is_text = isinstance(output, str) and output_context.tool_call is None and not output.lstrip().startswith("{")
        text = output if is_text else _text_in(output, TEXT_FIELDS[request.phase])
        if text.strip() and (is_text or ctx.retry >= ctx.max_retries):
            return PlainAnswer(text)
        raise error

    @override
    async def after_output_validate(self, ctx: RunContext[Any], *, output_context: OutputContext, output: Any) -> Any:
        request = _asked.get()
        if request is None or not isinstance(output, FORMS[request.phase]):
            return output
        checked_output, problems = checked(output, request.sources)
        if problems and ctx.retry < ctx.max_retries:
            raise ModelRetry("; ".join(problems))
        request.problems, request.is_checked = problems, True
        return checked_output


def _text_in(output: Any, field: str) -> str:
    """Return the text of a JSON object that does not validate: the text of a field, else the first text in it."""
    value = output
    if isinstance(output, str):
        try:
            value = from_json(output, allow_partial="trailing-strings")
        except ValueError:
            return ""
    fields = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
    return next((text.strip() for text in (fields.get(field), *fields.values()) if isinstance(text, str) and text.strip()), "")


# ---------------------------------------------------------------- the recorded answer


def recorded(output: Any, request: FormRequest) -> tuple[str, dict[str, Any]]:
    """Return the text of an answer, and the rest of it as plain JSON: the judgement, and the dropped entries.

    The output of an agent of the program may have any type. It is kept as `data`. Fields of the form of its phase are a
    judgement; they are checked like any other, but the model is not asked again.
    """
    if request.is_choice:
        return _chosen(output, request)
    form, text_field = FORMS[request.phase], TEXT_FIELDS[request.phase]
    if isinstance(output, PlainAnswer | str):
        return output.text if isinstance(output, PlainAnswer) else output, {}
    plain: Any = to_jsonable_python(output, fallback=str)
    record: dict[str, Any] = {} if type(output) is form else {"data": plain}
    if not (isinstance(output, form) and request.is_checked):
        try:
            form_output = output if isinstance(output, form) else form.model_validate(plain)
        except ValidationError:
            return _text_in(plain, text_field) or to_json(plain).decode(), record
        output, request.problems = checked(form_output, request.sources)
    fields = output.model_dump(mode="json", exclude_defaults=True, include={*form.model_fields})
    text = fields.pop(text_field)
    record["judgement"] = fields
    if request.problems:
        record["dropped"] = list(request.problems)
    return text, record


def _chosen(output: Any, request: FormRequest) -> tuple[str, dict[str, Any]]:
    """Return the quote that an agent has chosen. It is a judgement only if there was more than one quote."""
    sources = request.sources
    source = sources.id_of(str(getattr(output, "source", ""))) or next(iter(sources.ids), None)
    text = "" if source is None else sources.texts[sources.ids.index(source)]
    is_judged = source is not None and request.phase == "experience" and len(sources.ids) > 1
    return text, {"judgement": {"used": [source]}} if is_judged else {}


def judgement(form: type[FormT], phase: Phase, result: AgentResult) -> FormT | None:
    """Return the recorded output of an agent; None if it has given only text."""
    if result.judgement is None:
        return None
    return form.model_validate({**cast("dict[str, Any]", thaw(result.judgement)), TEXT_FIELDS[phase]: result.response})


# ---------------------------------------------------------------- marks

_MARK = re.compile(r"`[^`]*`|\s*\[(\d{1,3})\]")
"""A mark such as [1], with the space before it; in backticks, it is code."""


def marked(text: str) -> tuple[int, ...]:
    """Return the numbers of the marks in a text, in order, each once."""
    return tuple(dict.fromkeys(int(match[1]) for match in _MARK.finditer(text) if match[1]))


def without_marks(text: str, numbers: Iterable[int]) -> str:
    """Return a text without the marks that have one of these numbers."""
    gone = set(numbers)
    return _MARK.sub(lambda match: "" if match[1] and int(match[1]) in gone else match[0], text)

"""The constructors of all patterns have one shape: the ledger, what takes part, and keywords that mean the same everywhere."""

from inspect import Parameter, signature
from typing import Any

import pytest
from pydantic_ai.models.test import TestModel

from antiphon.agents import AgentBudget
from antiphon.agents.models import model as named_model
from antiphon.agents.toolkit import Toolkit
from antiphon.ledger.memory import MemoryLedger
from antiphon.patterns.cast import AgentSpec, Patience, Pattern, PatternOptions
from antiphon.patterns.options import Executor, Options
from antiphon.patterns.peers import Peers
from antiphon.patterns.postchain import ChainConfig, PostChain
from antiphon.patterns.teams import Team
from antiphon.patterns.workers import Workers
from antiphon.runtime import Settings

PATTERNS: list[type[Pattern]] = [PostChain, Peers, Executor, Team, Workers]
WHAT: dict[type[Pattern], str] = {
    PostChain: "config",
    Peers: "agents",
    Executor: "options",
    Team: "workers",
    Workers: "workers",
}
EVERY = pytest.mark.parametrize("pattern", PATTERNS)


def parameters(pattern: type[Pattern]) -> list[Parameter]:
    return list(signature(pattern).parameters.values())


def keywords(pattern: type[Pattern]) -> dict[str, Parameter]:
    return {each.name: each for each in parameters(pattern) if each.kind is Parameter.KEYWORD_ONLY}


@EVERY
def test_the_ledger_comes_first_then_what_takes_part_then_keywords(pattern: type[Pattern]) -> None:
    ledger, what, *others, common = parameters(pattern)
    assert (ledger.name, ledger.annotation, ledger.default) == ("ledger", "Ledger | None", None)
    assert what.name == WHAT[pattern]
    assert {ledger.kind, what.kind} == {Parameter.POSITIONAL_OR_KEYWORD}
    assert {each.kind for each in others} == {Parameter.KEYWORD_ONLY}
    assert (common.kind, common.annotation) == (Parameter.VAR_KEYWORD, "Unpack[PatternOptions]")
    assert Parameter.empty not in {each.default for each in (what, *others)}


@EVERY
def test_no_pattern_gives_a_common_keyword_a_meaning_of_its_own(pattern: type[Pattern]) -> None:
    assert not set(keywords(pattern)) & set(PatternOptions.__annotations__)


def test_a_keyword_of_several_patterns_has_one_type_and_one_default() -> None:
    """Only the fields of `limits` differ; its default is always the model without arguments."""
    for pattern in PATTERNS:
        for name, here in keywords(pattern).items():
            for there in (keywords(other)[name] for other in PATTERNS if name in keywords(other)):
                if name == "limits":
                    assert there.default == type(there.default)()
                    assert there.annotation == type(there.default).__name__
                    assert there.annotation.endswith("Limits")
                else:
                    assert (here.annotation, here.default) == (there.annotation, there.default)
    assert [pattern for pattern in PATTERNS if "limits" not in keywords(pattern)] == [PostChain]  # they are in its config


@EVERY
def test_every_pattern_takes_every_common_keyword(pattern: type[Pattern]) -> None:
    toolkit, spec = Toolkit(), AgentSpec(name="ada", tools=("look",))
    options = Options(toolkit)
    options.add_agent(spec)

    def look() -> str:
        """Look around."""
        return "nothing"

    common: dict[str, Any] = {
        "model": TestModel(),
        "toolkit": toolkit,
        "tools": [look],
        "patience": Patience(),
        "budget": AgentBudget(requests=1),
        "thread_budget": AgentBudget(requests=1),
        "make_model": named_model,
        "live": True,
        "settings": Settings(),
        "observer": None,
        "recover": False,
    }
    assert set(common) == set(PatternOptions.__annotations__) | set(PatternOptions.__optional_keys__)
    what: dict[type[Pattern], Any] = {PostChain: ChainConfig(), Executor: options}
    made: Any = pattern
    assert made(MemoryLedger(), what.get(pattern, [spec]), **common).ledger is not None

"""Mutants of the phases: each changes one line of the source so that a judgement no longer counts, and a test must notice.

A mutant names a function, a piece of its source, and the text that replaces it. The function is compiled again with the
change, for one test. Then the named tests run, of which at least one must fail. Without the change they pass: they are tests
themselves. A piece that is not in the source any more fails here, so that the mutants follow the code.
"""

import inspect
import textwrap
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from tests.patterns import test_phases as phases
from tests.patterns.postchain import test_outputs as outputs
from tests.patterns.postchain import test_own_agents as own_agents
from tests.patterns.postchain import test_own_phases as own_phases

from antiphon.patterns.cast import _cast
from antiphon.patterns.postchain import _agents, _context, _gateway, _lifecycle, _outputs, _phases
from antiphon.patterns.postchain import _cast as _postchain_cast

Killer = Callable[[], Coroutine[Any, Any, None] | None]


@dataclass(frozen=True)
class Mutant:
    """A change of the source, and the tests that notice it."""

    name: str
    owner: Any
    """The module or class that has the function."""
    function: str
    old: str
    new: str
    killers: tuple[Killer, ...]

    def function_in(self) -> Any:
        """Compile the function with the change."""
        found = inspect.getattr_static(self.owner, self.function)
        function = found.fget if isinstance(found, property) else found
        source = textwrap.dedent(inspect.getsource(function))
        assert source.count(self.old) == 1, f"{self.name}: the source has {source.count(self.old)} times {self.old!r}"
        made: dict[str, Any] = {}
        # The annotations of the source are text: without this, compiling would look them up.
        changed = f"from __future__ import annotations\n{source.replace(self.old, self.new)}"
        exec(changed, dict(function.__globals__), made)
        return made[self.function]


def _going_on() -> Coroutine[Any, Any, None]:
    return outputs.test_the_confidence_of_the_agent_decides_whether_a_turn_goes_on(0.2, 2, "cycle 2 of 2 was the last")


async def _other_prompt() -> None:
    with TemporaryDirectory() as folder:
        await own_agents.test_a_thread_goes_on_with_the_prompt_that_its_model_was_told(Path(folder), "prepared")


def _loose() -> Coroutine[Any, Any, None]:
    given = {"synthesis": "loose", "used": ["1", "9"]}
    return own_agents.test_any_output_type_will_do(own_agents.Loose, given, "loose", "agent")


MUTANTS = (
    Mutant(
        "the confidence of the last phase is a constant",
        _phases.YieldPhaseActor,
        "conclude",
        "confidence = result.confidence if judged is not None else None",
        "confidence = 0.95",
        (_going_on,),
    ),
    Mutant(
        "the confidence of the first phase is a constant",
        _phases.ActionPhaseActor,
        "conclude",
        "confidence = result.confidence if result.confidence is not None else first_confidence(work.question, result)",
        "confidence = 0.5",
        (outputs.test_a_first_answer_that_its_agent_doubts_is_not_passed_on,),
    ),
    Mutant(
        "all scores are 1",
        _phases.IntentionPhaseActor,
        "conclude",
        "agent_scores[item.id].score if item.id in agent_scores else _score(goals, item, work.question)",
        "1.0",
        (lambda: outputs.test_the_scores_of_the_agent_decide_what_is_cited(0.9, ["docs/pot.md"]),),
    ),
    Mutant(
        "all scores by code are 1",
        _phases,
        "_score",
        "best = item.priority if is_scored else max(relevance(goal, item.text) for goal in goals)",
        "return 1.0",
        (phases.test_intention_names_the_goals_and_scores_each_source_by_the_one_that_it_serves_best,),
    ),
    Mutant(
        "the goals of the agent are ignored",
        _phases.IntentionPhaseActor,
        "conclude",
        "goals = (() if judged is None else _goals(judged)) or goals_in(work.question)",
        "goals = goals_in(work.question)",
        (outputs.test_the_goals_of_the_agent_decide_the_scores_that_code_gives,),
    ),
    Mutant(
        "nothing is released by the agent",
        _phases.UnderstandingPhaseActor,
        "_operations",
        "for name in judged.release",
        "for name in ()",
        (outputs.test_the_judgement_of_each_agent_counts,),
    ),
    Mutant(
        "nothing is released by code",
        _phases,
        "let_go",
        "return operations + make_room(context.after(operations), question, room)",
        "return []",
        (phases.test_understanding_lets_go_of_what_is_beside_the_point_and_keeps_the_rest,),
    ),
    Mutant(
        "the words of the user are released",
        _context.ChainContext,
        "_after",
        'or (item.source == "user" and is_cut)',
        "",
        (lambda: phases.test_a_users_words_are_not_touched_without_consent(_context.Prune(target="user-1", reason="long")),),
    ),
    Mutant(
        "the words of the user make room",
        _phases,
        "make_room",
        'if candidate.source != "user"',
        "",
        (outputs.test_room_is_never_made_of_the_words_of_a_user,),
    ),
    Mutant(
        "a further cycle searches for the same again",
        _phases.ExperiencePhaseActor,
        "_found",
        "work.search_for or work.question",
        "work.question",
        (outputs.test_a_further_cycle_searches_for_what_the_last_one_has_said_is_missing,),
    ),
    Mutant(
        "what the agent says to search for is ignored",
        _phases,
        "search_in",
        "if judged is not None and judged.search_for:",
        "if False:",
        (outputs.test_a_further_cycle_searches_for_what_the_last_one_has_said_is_missing,),
    ),
    Mutant(
        "an unknown source is accepted",
        _outputs._Problems,
        "named",
        "return source",
        "return source or name",
        (outputs.test_an_unknown_source_is_a_problem_and_is_left_out,),
    ),
    Mutant(
        "a wrong output is not sent back",
        _outputs.CheckedDurability,
        "after_output_validate",
        "if problems and ctx.retry < ctx.max_retries:",
        "if False:",
        (outputs.test_a_wrong_output_is_sent_back_with_what_is_wrong,),
    ),
    Mutant(
        "a quote that is not verbatim is accepted",
        _outputs.NumberedSources,
        "says",
        "return bool(words) and words in",
        "return True or words in",
        (outputs.test_a_quote_must_be_in_its_source_word_for_word,),
    ),
    Mutant(
        "a mark without a citation is kept",
        _phases,
        "cite",
        "return without_marks(text, removed), citations, removed",
        "return text, citations, removed",
        (outputs.test_a_mark_without_a_citation_is_removed_and_reported,),
    ),
    Mutant(
        "a removed mark is not reported",
        _phases,
        "cite",
        "citations, removed",
        "citations, ()",
        (outputs.test_a_mark_without_a_citation_is_removed_and_reported,),
    ),
    Mutant(
        "the agent has always decided",
        _phases,
        "by_agent",
        '"agent" if is_judged else "code"',
        '"agent"',
        (lambda: outputs.test_text_is_taken_as_it_is_and_code_decides("So it is."),),
    ),
    Mutant(
        "code has always decided",
        _phases,
        "by_agent",
        '"agent" if is_judged else "code"',
        '"code"',
        (outputs.test_the_judgement_of_each_agent_counts,),
    ),
    Mutant(
        "the next phase that the agent names is ignored",
        _phases,
        "_wish_of",
        "if judged is None or judged.next_phase is None:",
        "if True:",
        (lambda: outputs.test_the_agent_of_the_last_phase_chooses_the_phase_to_go_on_with("understanding", 2),),
    ),
    Mutant(
        "a source that the agent relies on is noise",
        _phases,
        "_score",
        "if USED in item.tags:",
        "if False:",
        (outputs.test_a_source_that_an_agent_relies_on_is_not_taken_for_noise,),
    ),
    Mutant(
        "observations of earlier threads are sources",
        _context.PhaseWork,
        "sources",
        "if item.source not in _NOT_SOURCES]",
        "if item.source not in _NOT_SOURCES[:2]]",
        (outputs.test_observations_of_earlier_threads_are_separate_and_never_cited,),
    ),
    Mutant(
        "all relevant sources are cited, whatever the agent marks",
        _phases,
        "cite",
        "if judged is None or not with_mark else set[str]()",
        "",
        (outputs.test_only_the_sources_with_a_mark_are_cited_by_an_agent,),
    ),
    Mutant(
        "text is no answer where a form is wanted",
        _outputs.CheckedDurability,
        "on_output_validate_error",
        "if text.strip() and (is_text or ctx.retry >= ctx.max_retries):",
        "if False:",
        (lambda: outputs.test_text_is_taken_as_it_is_and_code_decides("So it is."),),
    ),
    Mutant(
        "a phase that has begun with text is asked for a form",
        _agents,
        "_form",
        "config.outputs not in (TYPED, QUOTED) or",
        "",
        (outputs.test_a_phase_that_has_begun_with_text_goes_on_with_text,),
    ),
    Mutant(
        "the agent of another program is replaced by ours",
        _postchain_cast.ChainCast,
        "lacks",
        "if name is not None and",
        "if False and",
        (own_agents.test_only_a_program_with_the_agent_continues_its_phase,),
    ),
    Mutant(
        "the output of an agent of the program is not checked",
        _agents,
        "recorded",
        "output, request.problems = checked(form_output, request.sources)",
        "output = form_output",
        (
            lambda: own_agents.test_any_output_type_will_do(
                own_agents.Loose, {"synthesis": "loose", "used": ["1", "9"]}, "loose", "agent"
            ),
        ),
    ),
    Mutant(
        "a thread forgets the order of its phases",
        _lifecycle.ThreadLife,
        "order",
        "return protocol.PHASES if self.phases is None else self.phases",
        "return protocol.PHASES",
        (lambda: own_phases.test_a_phase_of_the_program_takes_its_place(5, ["docs/tea.md"]),),
    ),
    Mutant(
        "the protocol takes a chain with other phases",
        _gateway.Gateway,
        "_answered",
        "if self._own_phases:",
        "if False:",
        (own_phases.test_the_protocol_refuses_such_a_chain,),
    ),
    Mutant(
        "a listener hears JSON",
        _cast.TextPieces,
        "_text",
        "if self._field is None or not start.startswith",
        "if True or not start.startswith",
        (outputs.test_of_json_in_pieces_the_text_of_one_field_is_heard,),
    ),
    Mutant(
        "what the agent of the second phase misses is ignored",
        _phases,
        "search_in",
        "if work.missing:",
        "if False:",
        (outputs.test_a_further_cycle_searches_for_what_the_last_one_has_said_is_missing,),
    ),
    Mutant(
        "the names that the agent gives are ignored",
        _phases.ObservationPhaseActor,
        "conclude",
        "entities = named or entities_in",
        "entities = entities_in",
        (outputs.test_the_judgement_of_each_agent_counts,),
    ),
    Mutant(
        "the notes of the agent are forgotten",
        _phases.ObservationPhaseActor,
        "conclude",
        'notes = result.response[:MENTIONED] if is_judged else ""',
        'notes = ""',
        (outputs.test_the_judgement_of_each_agent_counts,),
    ),
    Mutant(
        "a doubted answer is passed on",
        _context,
        "_is_doubted",
        'return output.by == "agent"',
        'return False and output.by == "agent"',
        (outputs.test_a_first_answer_that_its_agent_doubts_is_not_passed_on,),
    ),
    Mutant(
        "a phase does not say that its agent got another prompt",
        _agents.AgentManagerActor,
        "_answer",
        "config.prompt if planned is not None",
        "config.prompt if False",
        (_other_prompt,),
    ),
)


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name.replace(" ", "-"))
async def test_a_test_notices_the_mutant(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of its tests fails."""
    changed = mutant.function_in()
    monkeypatch.setattr(mutant.owner, mutant.function, changed)
    for killer in mutant.killers:
        try:
            running = killer()
            if running is not None:
                await running
        except (AssertionError, pytest.fail.Exception):
            return
    pytest.fail(f"no test notices it: {mutant.name}")

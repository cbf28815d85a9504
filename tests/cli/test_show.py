"""`antiphon show`: a conversation as people read it."""

import asyncio
import importlib.util
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from inline_snapshot import snapshot
from tests.cli.running import in_terminal, run, said, save_house, start
from tests.strategies import conversations

from antiphon import (
    Citation,
    Conversation,
    DataPart,
    ForeignPart,
    MediaPart,
    Message,
    OptionCallPayload,
    OptionResultPayload,
    PartsPayload,
    ReasoningPart,
    TextPart,
    dumps,
)
from antiphon.ledger import open_ledger
from antiphon.messages import Tool
from antiphon.patterns.options import Choices, Executor, Options
from antiphon.service import transcript

ROOT = Path(__file__).parent.parent.parent


def shown(*messages: Message, **header: Any) -> str:
    """Return what the command prints of a conversation."""
    result = run("show", "-", "--from", "house", stdin=dumps(Conversation(messages, **header)))
    assert (result.exit_code, result.stderr) == (0, "")
    return result.stdout


def call(id: str, name: str = "look", policy: str = "bob", **fields: Any) -> Message:
    arguments = fields.pop("arguments", {})
    text = fields.pop("arguments_text", None)
    payload = OptionCallPayload(invocation_id=id, option_name=name, arguments=arguments, arguments_text=text)
    return Message(policy=policy, payload=payload, **fields)


def result(id: str, value: Any = None, name: str = "look", policy: str | None = None, **fields: Any) -> Message:
    return Message(
        policy=policy or name, payload=OptionResultPayload(invocation_id=id, option_name=name, result=value, **fields)
    )


# ---------------------------------------------------------------- calls and results


@pytest.mark.slow
def test_the_first_example_reads_like_a_conversation(tmp_path: Path) -> None:
    specification = importlib.util.spec_from_file_location("first", ROOT / "examples" / "first_conversation.py")
    assert specification is not None
    assert specification.loader is not None
    example = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(example)

    done = start("show", save_house(tmp_path / "first.jsonl", list(example.build())))

    assert done.returncode == 0
    lines = [line for line in done.stdout.decode().splitlines() if "UTC" not in line]
    assert lines == snapshot(
        [
            "  │ What is the weather in Oslo, and what does this sky look like?",
            "  [image https://example.com/sky.jpg: the sky this morning]",
            "",
            "  │ I look at both.",
            '  calls get_weather {"city": "Oslo"}',
            '    gives {"sky": "clear", "celsius": -3.5}',
            '  calls describe_image {"url": "https://example.com/sky.jpg", "words": 20}',
            "    fails: NotFound: no such image (may be tried again)",
            "",
            "  │ Clear sky, -3.5 °C. The image could not be found.",
        ]
    )


def test_a_result_is_shown_under_its_call_wherever_it_came() -> None:
    assert shown(
        call("c-1", arguments={"at": "sea"}),
        call("c-2", arguments={"at": "sky"}),
        said(TextPart(text="Hurry!")),
        result("c-2", {"stars": 3}),
        result("c-1", "waves"),
    ) == snapshot("""\
bob
  calls look {"at": "sea"}
    gives waves
  calls look {"at": "sky"}
    gives {"stars": 3}

ada
  │ Hurry!
""")


def test_calls_of_one_utterance_share_its_heading() -> None:
    told = said(TextPart(text="I look."), policy="bob", turn_id="t-1")

    text = shown(told, call("c-1", turn_id="t-1"), result("c-1"), call("c-2", turn_id="t-1"), call("c-3", turn_id="t-2"))

    assert text == snapshot("""\
bob
  │ I look.
  calls look {}
    gives nothing
  calls look {}
    no result

bob
  calls look {}
    no result
""")


def test_two_utterances_have_a_heading_each() -> None:
    assert shown(said(TextPart(text="hi")), said(TextPart(text="hi"))) == "ada\n  │ hi\n\nada\n  │ hi\n"


def test_open_calls_orphans_and_repetitions_are_marked() -> None:
    assert shown(result("c-0", "early"), call("c-1"), call("c-2"), result("c-2", 1), result("c-2", 2)) == snapshot("""\
look
  no call is here for this result of look (invocation c-0)
    gives early

bob
  calls look {}
    no result
  calls look {}
    gives 1

look
  one more result of look (invocation c-2)
    gives 2
""")


def test_an_invocation_that_is_used_again_is_paired_as_it_was_meant() -> None:
    assert shown(call("c"), result("c", 1), said(TextPart(text="again")), call("c"), result("c", 2)) == snapshot("""\
bob
  calls look {}
    gives 1

ada
  │ again

bob
  calls look {}
    gives 2
""")


def test_errors_say_their_type_and_message_and_who_says_so() -> None:
    error: dict[str, Any] = {"is_error": True, "error_type": "NotFound", "error_message": "no such\nplace"}

    assert shown(
        call("c-1"),
        result("c-1", {"code": 404}, retryable=True, **error),
        call("c-2"),
        result("c-2", policy="runtime", **error),
    ) == snapshot("""\
bob
  calls look {}
    fails: NotFound: no such
          place (may be tried again)
    details {"code": 404}
  calls look {}
    fails (said by runtime): NotFound: no such
          place
""")


def test_arguments_that_are_no_json_are_shown_as_they_were_written() -> None:
    assert shown(call("c-1", arguments_text='{"city": "Os')) == 'bob\n  calls look {"city": "Os\n    no result\n'
    assert shown(call("c-1", arguments={"a": 1}, arguments_text='{"a":  1}')).startswith('bob\n  calls look {"a": 1}\n')


def test_long_values_stand_below_their_label() -> None:
    assert shown(
        call("c-1", arguments={"words": ["many"] * 12, "of": {"them": True}}), result("c-1", "two\nlines")
    ) == snapshot("""\
bob
  calls look
    │ {
    │   "words": [
    │     "many",
    │     "many",
    │     "many",
    │     "many",
    │     "many",
    │     "many",
    │     "many",
    │     "many",
    │     "many",
    │     "many",
    │     "many",
    │     "many"
    │   ],
    │   "of": {
    │     "them": true
    │   }
    │ }
    gives
      │ two
      │ lines
""")


# ---------------------------------------------------------------- who, to whom, when


def test_a_heading_says_who_to_whom_in_which_step_and_when() -> None:
    message = said(
        TextPart(text="hi"), to=("bob", "eve"), step_num=3, lane="control", created_at=datetime(2026, 1, 5, 9, 30, tzinfo=UTC)
    )

    assert shown(message).splitlines()[0] == "ada (to bob, eve, step 3, control, 2026-01-05 09:30:00 UTC)"


# Mutant: _heading (cli/_transcript.py) leaves out the step, _goes_on joins two steps, or Decision._row
# (patterns/options/_decision.py) gives all decisions one step -> this test is red.
def test_decisions_of_a_policy_are_shown_step_by_step(tmp_path: Path) -> None:
    """OP-023: a run of the executor as a developer reads it: each decision under its number, with its result."""
    options, url = Options(), f"sqlite:///{tmp_path}/steps.db"

    @options.option(effects="none")
    def look(where: str) -> str:
        """Look somewhere."""
        return f"nothing {where}"

    @options.policy()
    def clerk(observations: Conversation, choices: Choices) -> Any:
        decided = len({call.step_num for call in observations.calls()})
        places = [("attic", "cellar"), ("roof",), ()][decided]
        return [choices.call("look", where=place) for place in places] or "It is nowhere."

    async def main() -> None:
        async with open_ledger(url) as ledger, Executor(ledger, options) as executor:
            await executor.run("Where is it?", thread_id="t")

    asyncio.run(main())
    assert (
        run("show", "t", "--ledger", url).stdout
        == """\
user
  │ Where is it?

clerk (step 1)
  calls look {"where": "attic"}
    gives nothing attic
  calls look {"where": "cellar"}
    gives nothing cellar

clerk (step 2)
  calls look {"where": "roof"}
    gives nothing roof

clerk (step 3)
  │ It is nowhere.
"""
    )


def test_tools_are_named_first() -> None:
    tools = [Tool(name="look"), Tool(name="jump")]

    assert shown(said(TextPart(text="hi")), tools=tools) == "tools: look, jump\n\nada\n  │ hi\n"
    assert shown(tools=tools) == "tools: look, jump\n(no messages)\n"


# ---------------------------------------------------------------- what is said


def test_every_kind_of_part_is_shown() -> None:
    source = Citation(title="Atlas", url="https://example.com/atlas", quote="here be dragons")
    assert shown(
        said(
            TextPart(text="one\n\ntwo", citations=(source,)),
            MediaPart(modality="image", url="https://example.com/sky.jpg", prompt_hint="the sky"),
            MediaPart(modality="audio", url=f"data:audio/wav;base64,{'A' * 4000}"),
            MediaPart(modality="document", url="DATA:,hello"),
            ReasoningPart(text="first this\nthen that"),
            ReasoningPart(encrypted_content="xyz"),
            DataPart(data={"a": [1, None]}),
            ForeignPart(dialect="choir", value="x"),
        ),
        said(),
        call("c-1"),
        result("c-1", parts=(MediaPart(modality="video", url="s3://bucket/film"), TextPart(text="seen"))),
    ) == snapshot("""\
ada
  │ one
  │
  │ two
  [source: Atlas, https://example.com/atlas, here be dragons]
  [image https://example.com/sky.jpg: the sky]
  [audio data:audio/wav;base64,… 3.0 kB]
  [document DATA:,… 5 bytes]
  [reasoning] first this
        then that
  [reasoning] (not shown by its provider)
  [data] {"a": [1, null]}
  [only in choir] x

ada
  (says nothing)

bob
  calls look {}
    gives
      [video s3://bucket/film]
      │ seen
""")


def test_data_urls_in_values_are_shortened_too() -> None:
    url = f"data:image/png;base64,{'A' * 4000}"

    text = shown(call("c-1", arguments={"picture": url, "data": [1, 2]}), result("c-1", f"see {url}!"))

    assert text == snapshot("""\
bob
  calls look {"picture": "data:image/png;base64,… 3.0 kB", "data": [1, 2]}
    gives see data:image/png;base64,… 3.0 kB!
""")


def test_hidden_characters_and_markup_are_shown_as_what_they_are() -> None:
    hostile = "\x1b[2J\x1b]0;x\x07 a\u202eb \u200b[red]c[/red] :smile: [/]"

    text = shown(
        said(TextPart(text=hostile), DataPart(data={hostile: hostile})),
        call("c-1", arguments={"x": hostile}, arguments_text=hostile),
        result("c-1", hostile, is_error=True, error_type=hostile, error_message=hostile),
    )

    assert not {"\x1b", "\x07", "\u202e", "\u200b"} & set(text)
    assert text.count("⟨U+202E⟩b ⟨U+200B⟩[red]c[/red] :smile: [/]") >= 5


def test_no_text_passes_for_a_speaker_a_call_or_a_result() -> None:
    """Words that were said stand behind a bar, or further in than anything that we say."""
    forged = "x\neve\n  │ I am eve\n  calls launch {}\n    gives done"

    text = shown(
        said(
            TextPart(text=forged), ReasoningPart(text=forged), MediaPart(modality="image", url="urn:a:b", prompt_hint=forged)
        ),
        call("c-1", arguments_text=forged),
        result("c-1", forged, is_error=True, error_type="Bad", error_message=forged),
    )

    lines = text.splitlines()
    assert [line for line in lines if line and not line.startswith(" ")] == ["ada", "bob"]
    assert [line for line in lines if line.startswith("  calls")] == ["  calls look"]
    assert not [line for line in lines if line.startswith(("    gives", "    calls"))]


# ---------------------------------------------------------------- terminals


@pytest.mark.slow
def test_a_terminal_gets_colours_and_lines_that_fit(tmp_path: Path) -> None:
    failed = result("c-1", is_error=True, error_type="NotFound", error_message="no such place")
    path = save_house(tmp_path / "x.jsonl", [said(TextPart(text="long " * 30 + "\n\tindented")), call("c-1"), failed])

    text = in_terminal("show", path, columns=40)

    assert "\x1b[1;31mfails: NotFound: no such place\x1b[0m" in text
    assert text.count("  │ long") == 5
    assert "  │         indented" in text


@pytest.mark.slow
def test_a_pipe_gets_no_colours_and_lines_as_they_are(tmp_path: Path) -> None:
    path = save_house(tmp_path / "x.jsonl", [said(TextPart(text="long " * 100 + "end"))])

    text = start("show", path).stdout.decode()

    assert "\x1b" not in text
    assert text == f"ada\n  │ {'long ' * 100}end\n"


@pytest.mark.slow
def test_a_terminal_that_is_not_utf_8_gets_numbers(tmp_path: Path) -> None:
    path = save_house(tmp_path / "x.jsonl", [said(TextPart(text="Blåbær"))])

    done = start("show", path, PYTHONIOENCODING="ascii")

    assert (done.returncode, done.stdout) == (0, b"ada\n  \\u2502 Bl\\xe5b\\xe6r\n")


@pytest.mark.slow
@given(conversations)
def test_any_conversation_can_be_shown(conversation: Conversation) -> None:
    """Every message is there, and every line is safe."""
    lines = list(transcript(conversation))

    assert lines
    assert not any({"\x1b", "\x00", "\u202e", "\r"} & set(line.text) for line in lines)


# ---------------------------------------------------------------- step by step


def stepped() -> list[Message]:
    return [
        Message(id="m-1", policy="user", payload=PartsPayload(parts=(TextPart(text="Go."),))),
        call("i-1", step_num=1).model_copy(update={"id": "m-2"}),
        call("i-2", step_num=2).model_copy(update={"id": "m-3"}),
        result("i-1", "late").model_copy(update={"id": "m-4", "step_num": 1}),
        Message(id="m-5", policy="user", payload=PartsPayload(parts=(TextPart(text="Well?"),))),
        result("i-2", 7).model_copy(update={"id": "m-6", "step_num": 3}),
        Message(id="m-7", policy="bob", step_num=3, payload=PartsPayload(parts=(TextPart(text="Done."),))),
    ]


def test_a_conversation_is_shown_step_by_step() -> None:
    """OP-023: steps in the order they began, a late message with its step; what is of no step where it was said."""
    done = run("show", "-", "--from", "house", "--by-step", stdin=dumps(Conversation(stepped())))

    assert done.stdout.splitlines() == [
        "── no step: 1 said",
        "  user",
        "    │ Go.",
        "",
        "── step 1: 1 called, 1 answered",
        "  bob (step 1)",
        "    calls look {}",
        "      gives late",
        "",
        "── step 2: 1 called",
        "  bob (step 2)",
        "    calls look {}",
        "      gives 7",
        "",
        "── no step: 1 said",
        "  user",
        "    │ Well?",
        "",
        "── step 3: 1 said, 1 answered",
        "  bob (step 3)",
        "    │ Done.",
    ]


def test_steps_for_programs_have_every_message_once() -> None:
    """OP-023: `--by-step --json`."""
    done = run("show", "-", "--from", "house", "--by-step", "--json", stdin=dumps(Conversation(stepped())))

    steps = [(each["step"], [message["id"] for message in each["messages"]]) for each in json.loads(done.stdout)]
    assert steps == [(None, ["m-1"]), (1, ["m-2", "m-4"]), (2, ["m-3"]), (None, ["m-5"]), (3, ["m-6", "m-7"])]


def test_an_empty_conversation_has_no_steps() -> None:
    assert run("show", "-", "--from", "house", "--by-step", stdin=dumps(Conversation())).stdout == "(no messages)\n"

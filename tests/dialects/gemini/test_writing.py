"""Conversations from elsewhere as contents that the service accepts."""

from base64 import b64encode
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.dialects.conversations import conversations
from tests.dialects.gemini.bodies import BODIES
from tests.dialects.gemini.rules import refusals
from tests.dialects.samples import SAMPLES
from tests.providers.samples import samples
from tests.providers.types import as_request, differences, problems

from antiphon import Conversation, Message
from antiphon.dialects import decode, encode, get
from antiphon.messages import (
    Citation,
    DataPart,
    ForeignPart,
    MediaPart,
    OptionCallPayload,
    OptionResultPayload,
    Part,
    PartsPayload,
    ReasoningPart,
    TextPart,
    Tool,
)

GEMINI = get("gemini")
STAND_IN = b64encode(b"skip_thought_signature_validator").decode()
PLACEHOLDER = {"role": "user", "parts": [{"text": "."}]}


def talk(who: str, *parts: str | Part, **fields: Any) -> Message:
    made = tuple(TextPart(text=part) if isinstance(part, str) else part for part in parts)
    return Message(policy=who, payload=PartsPayload(parts=made), **fields)


def call(name: str, id: str, arguments: dict[str, Any] | None = None, **fields: Any) -> Message:
    payload = OptionCallPayload(invocation_id=id, option_name=name, arguments=arguments or {})
    return Message(policy="assistant", payload=payload, **fields)


def result(name: str, id: str, value: Any = None, **fields: Any) -> Message:
    return Message(policy=name, payload=OptionResultPayload(invocation_id=id, option_name=name, result=value, **fields))


def contents(*messages: Message, **options: Any) -> list[Any]:
    written: list[Any] = GEMINI.encode(Conversation(messages), **options).value["contents"]
    return written


def losses(*messages: Message) -> set[str]:
    return {loss.what for loss in GEMINI.encode(Conversation(messages)).losses}


def response_of(*parts: Part, **fields: Any) -> Any:
    return contents(talk("user", "go"), call("f", "c"), result("f", "c", parts=parts, **fields))[2]["parts"][0][
        "functionResponse"
    ]


def is_from_elsewhere(conversation: Conversation) -> bool:
    parts = [p for m in conversation for p in (m.payload.parts if not isinstance(m.payload, OptionCallPayload) else ())]
    return not any(isinstance(part, ForeignPart) and part.dialect == "gemini" for part in parts)


# ---------------------------------------------------------------- any conversation


@pytest.mark.slow
@given(conversation=conversations().filter(is_from_elsewhere))
def test_any_conversation_becomes_what_the_service_accepts(conversation: Conversation) -> None:
    """OP-060: by the SDK's types with unknown keys refused, and by what the service says no to."""
    value = GEMINI.encode(conversation).value

    assert problems("gemini", "request", value) == []
    assert refusals(value) == []


@pytest.mark.slow
@given(conversation=conversations())
def test_a_written_body_is_read_and_written_the_same(conversation: Conversation) -> None:
    value = GEMINI.encode(conversation).value
    again = GEMINI.encode(GEMINI.decode(value))

    assert differences(value, again.value) == []
    assert again.losses == ()


def steps(kinds: list[str]) -> list[list[Message]]:
    """What is said in one go each: words of someone, or calls with their results."""
    picture = MediaPart(modality="image", url="https://x.example/a.png")
    made: list[list[Message]] = []
    for place, kind in enumerate(kinds):
        if kind == "calls":
            one, two = f"{place}a", f"{place}b"
            made.append([call("f", one), call("g", two), result("g", two, 2), result("f", one, 1)])
        elif kind == "native":
            made.append(list(GEMINI.decode(BODIES["no role"])))
        else:
            made.append([talk(kind, f"{kind} {place}", picture)])
    return made


@given(kinds=st.lists(st.sampled_from(["user", "assistant", "system", "calls", "native"]), min_size=2, max_size=8))
def test_a_longer_history_begins_like_a_shorter_one(kinds: list[str]) -> None:
    """Nothing is written otherwise because of what comes later: no stand-in, no placeholder, no label, no instruction."""
    made = steps(kinds)
    whole = contents(*(message for step in made for message in step), media_labels=True)
    for end in range(1, len(made)):
        begun = contents(*(message for step in made[:end] for message in step), media_labels=True)
        assert differences(whole[: len(begun)], begun) == []


@pytest.mark.parametrize("sample", [each for each in samples() if each.dialect != "gemini" and each.kind != "stream"], ids=str)
def test_every_sample_of_the_other_providers_is_accepted(sample: Any) -> None:
    encoded = GEMINI.encode(decode(sample.body, sample.dialect))

    assert problems("gemini", "request", encoded.value) == []
    assert refusals(encoded.value) == []
    assert all(loss.reason for loss in encoded.losses)


@pytest.mark.parametrize("name", SAMPLES)
def test_every_sample_of_the_seeds_is_accepted(name: str) -> None:
    value = GEMINI.encode(decode(SAMPLES[name], name)).value

    assert problems("gemini", "request", value) == []
    assert refusals(value) == []


@pytest.mark.slow
@pytest.mark.parametrize("sample", [each for each in samples("gemini") if each.kind != "stream"], ids=str)
@pytest.mark.parametrize("target", ["openai-chat", "openai-responses", "anthropic-messages"])
def test_a_history_from_gemini_is_valid_for_the_other_providers(sample: Any, target: str) -> None:
    value = encode(decode(sample.body, "gemini"), target).value

    assert problems(target, "request", as_request(target, value)) == []


# ---------------------------------------------------------------- turns


def test_roles_are_two() -> None:
    """OP-054."""
    said = contents(
        talk("alice", "a", role_hint_for_llm="user"), talk("bob", "b", role_hint_for_llm="assistant"), talk("assistant", "c")
    )

    assert [content["role"] for content in said] == ["user", "model", "model"]
    assert losses(talk("alice", "a", role_hint_for_llm="user")) == {"speaker"}


def test_the_viewpoint_decides_whose_words_are_the_models() -> None:
    said = contents(talk("bob", "b"), talk("alice", "a"), as_policy="alice")

    assert [content["role"] for content in said] == ["user", "model"]


def test_the_user_speaks_first() -> None:
    encoded = GEMINI.encode(Conversation([talk("assistant", "Welcome.")]))

    assert encoded.value["contents"] == [PLACEHOLDER, {"role": "model", "parts": [{"text": "Welcome."}]}]
    assert [loss.what for loss in encoded.losses] == ["added"]


def test_a_call_follows_a_user_or_a_result() -> None:
    said = contents(
        talk("user", "go"), talk("assistant", "Wait."), call("f", "1"), result("f", "1"), call("f", "2"), result("f", "2")
    )

    assert [content["role"] for content in said] == ["user", "model", "user", "model", "user", "model", "user"]
    assert said[2] == PLACEHOLDER
    assert PLACEHOLDER not in said[3:]


def test_words_and_calls_of_one_utterance_are_one_content() -> None:
    said = contents(talk("user", "go"), talk("assistant", "Look.", turn_id="t"), call("f", "1", turn_id="t"), result("f", "1"))

    assert [list(part) for part in said[1]["parts"]] == [["text"], ["functionCall", "thoughtSignature"]]


def test_instructions_in_front_have_their_own_place() -> None:
    value = GEMINI.encode(Conversation([talk("system", "A"), talk("system", "B", "C"), talk("user", "hi")])).value

    assert value["systemInstruction"] == {"parts": [{"text": "A"}, {"text": "B"}, {"text": "C"}]}
    assert len(value["contents"]) == 1


def test_a_later_instruction_is_the_users_and_says_what_it_is() -> None:
    picture = MediaPart(modality="image", url="https://x.example/a.png")
    said = contents(talk("user", "hi"), talk("system", "Be brief.", "Now."), talk("system", picture))

    assert said[1] == {"role": "user", "parts": [{"text": "[System instruction]: Be brief."}, {"text": "Now."}]}
    assert said[2]["parts"][0] == {"text": "[System instruction]: "}
    assert "fileData" in said[2]["parts"][1]


def test_instructions_that_say_nothing_are_left_out() -> None:
    assert GEMINI.encode(Conversation([talk("system", ""), talk("user", "hi")])).value.keys() == {"contents"}


def test_instructions_are_words() -> None:
    """Nothing is shown there, only described."""
    picture = MediaPart(modality="image", url="https://x.example/a.png")
    value = GEMINI.encode(Conversation([talk("system", picture), talk("user", "hi")])).value

    assert value["systemInstruction"]["parts"] == [{"text": "[image: https://x.example/a.png]"}]


def test_empty_messages_are_not_written() -> None:
    said = contents(talk("user", "hi"), talk("user", ""), talk("user"), talk("assistant", "", "yes", DataPart(data="")))

    assert said == [{"role": "user", "parts": [{"text": "hi"}]}, {"role": "model", "parts": [{"text": "yes"}]}]


# ---------------------------------------------------------------- calls and results


def test_the_first_call_of_each_step_has_the_stand_in() -> None:
    """Parallel calls have one signature, and each step has one, whichever turn is the current one."""
    said = contents(
        talk("user", "go"),
        call("f", "1"),
        call("g", "2"),
        result("f", "1"),
        result("g", "2"),
        call("f", "3"),
        result("f", "3"),
        talk("user", "thanks"),
    )
    signed = [[part.get("thoughtSignature") for part in content["parts"]] for content in said if content["role"] == "model"]

    assert signed == [[STAND_IN, None], [STAND_IN]]


def test_a_signature_of_its_own_is_given_back_and_no_other() -> None:
    native = GEMINI.decode(samples("gemini", "request")[0].body)
    value = GEMINI.encode(native.extend([call("now", "x"), result("now", "x", "9")])).value
    signatures = [part.get("thoughtSignature") for c in value["contents"] for part in c["parts"] if "functionCall" in part]

    assert signatures == ["CpwBAdHtim9/+w0XyZ4kQf/+", None, None, STAND_IN]


def test_open_calls_and_results_of_no_call_are_left_out() -> None:
    """OP-058."""
    messages = (talk("user", "go"), call("f", "1"), call("f", "2"), result("f", "2"), result("f", "9"))
    said = contents(*messages)

    assert [part["functionCall"]["id"] for part in said[1]["parts"]] == ["2"]
    assert [part["functionResponse"]["id"] for part in said[2]["parts"]] == ["2"]
    assert losses(*messages) == {"message"}


def test_results_of_a_step_stand_in_one_content_right_after_it() -> None:
    """OP-057."""
    said = contents(
        talk("user", "go"), call("f", "1"), call("g", "2"), talk("user", "hurry"), result("g", "2", 2), result("f", "1", 1)
    )

    assert [part["functionResponse"]["id"] for part in said[2]["parts"]] == ["2", "1"]
    assert said[3] == {"role": "user", "parts": [{"text": "hurry"}]}


def test_results_of_calls_without_ids_have_none_and_stand_in_the_order_of_the_calls() -> None:
    """The service tells two calls of one function apart by their order only."""
    asked = GEMINI.decode({"contents": [{"role": "user", "parts": [{"text": "Look."}]}]})
    asked = asked.extend(GEMINI.decode(BODIES["calls without ids"]))
    left, right = [str(message.invocation_id) for message in asked.calls()]
    answered = asked.extend([result("look", right, "a tree"), result("look", left, "a house")])

    assert GEMINI.encode(answered).value["contents"][2]["parts"] == [
        {"functionResponse": {"name": "look", "response": {"output": "a house"}}},
        {"functionResponse": {"name": "look", "response": {"output": "a tree"}}},
    ]


@pytest.mark.parametrize(
    ("value", "response"),
    [
        ("text", {"output": "text"}),
        ('{"a": 1}', {"output": '{"a": 1}'}),
        (None, {"output": None}),
        (1.0, {"output": 1.0}),
        ([1], {"output": [1]}),
        ({"a": 1}, {"a": 1}),
        ({}, {}),
        ({"a": 1, "error": None}, {"a": 1, "error": None}),
        ({"output": 1}, {"output": {"output": 1}}),
        ({"output": 1, "a": 2}, {"output": {"output": 1, "a": 2}}),
        ({"error": "no"}, {"output": {"error": "no"}}),
    ],
)
def test_a_result_is_an_object_and_read_as_what_it_was(value: Any, response: dict[str, Any]) -> None:
    """OP-061: a success that speaks of an error is none."""
    messages = (talk("user", "go"), call("f", "c"), result("f", "c", value))

    assert contents(*messages)[2]["parts"][0]["functionResponse"]["response"] == response
    assert losses(*messages) == set()


@pytest.mark.parametrize(
    ("kind", "message", "details", "response"),
    [
        ("Error", "no", None, {"error": "no"}),
        ("Timeout", "5 s", None, {"error": "Timeout: 5 s"}),
        ("Timeout", "", None, {"error": "Timeout: "}),
        ("Error", "no", {"code": 503}, {"error": "no", "code": 503}),
        ("Error", "no", {"error": None}, {"error": "no", "output": {"error": None}}),
        ("Error", "no", {"output": 1}, {"error": "no", "output": {"output": 1}}),
        ("Error", "no", {}, {"error": "no", "output": {}}),
        ("Error", "no", [1], {"error": "no", "output": [1]}),
    ],
)
def test_an_error_is_written_as_text_with_its_details(kind: str, message: str, details: Any, response: dict[str, Any]) -> None:
    """OP-061."""
    failed = result("f", "c", details, is_error=True, error_type=kind, error_message=message)
    messages = (talk("user", "go"), call("f", "c"), failed)

    assert contents(*messages)[2]["parts"][0]["functionResponse"]["response"] == response
    assert losses(*messages) == set()


def test_an_error_without_words_says_that_it_is_one() -> None:
    assert response_of(is_error=True, error_type="Error", error_message="")["response"] == {"error": "Error"}


def test_a_result_shows_media_and_says_the_rest_in_its_output() -> None:
    picture = MediaPart(modality="image", url="data:image/png;base64,AAAA")
    elsewhere = MediaPart(modality="document", url="s3://bucket/x.pdf", prompt_hint="x.pdf")
    shown = response_of(TextPart(text="see"), picture, DataPart(data={"a": 1}), elsewhere, TextPart(text=""), value="done")

    assert shown["parts"] == [{"inlineData": {"mimeType": "image/png", "data": "AAAA"}}]
    assert shown["response"] == {"output": 'done\nsee\n{"a":1}\n[document x.pdf]'}
    assert response_of(picture, value={"a": 1})["response"] == {"a": 1}


def test_arguments_that_are_no_object_are_wrapped_in_one() -> None:
    cut = Message(
        policy="assistant",
        payload=OptionCallPayload(invocation_id="c", option_name="f", arguments={}, arguments_text='{"city": "Oslo'),
    )
    said = contents(talk("user", "go"), cut, result("f", "c"))

    assert said[1]["parts"][0]["functionCall"]["args"] == {"_raw": '{"city": "Oslo'}
    assert losses(talk("user", "go"), cut, result("f", "c")) == set()


def test_names_that_the_service_refuses_have_others_that_are_read_back() -> None:
    conversation = Conversation(
        [talk("user", "go"), call("web search!", "c/1:é"), result("web search!", "c/1:é", "x")],
        tools=[Tool(name="web search!")],
    )
    encoded = GEMINI.encode(conversation)
    name = encoded.value["tools"][0]["functionDeclarations"][0]["name"]
    back = GEMINI.decode(encoded.value, aliases=encoded.aliases)

    assert refusals(encoded.value) == []
    assert encoded.value["contents"][1]["parts"][0]["functionCall"]["name"] == name != "web search!"
    assert [m.payload.option_name for m in back if isinstance(m.payload, OptionCallPayload)] == ["web search!"]
    assert {m.invocation_id for m in back} == {None, "c/1:é"}
    assert encoded.losses == ()


@pytest.mark.parametrize("shown", [(), (TextPart(text="besides"),)])
def test_a_response_has_the_name_of_the_call_it_answers(shown: tuple[Part, ...]) -> None:
    """As that was written, on the short way and on the long one: the service pairs by name. What is lost is reported."""
    messages = (talk("user", "go"), call("web search!", "c1"), result("search", "c1", "x", parts=shown))
    said = contents(*messages)

    assert said[2]["parts"][0]["functionResponse"]["name"] == said[1]["parts"][0]["functionCall"]["name"] != "search"
    assert "option" in losses(*messages)


def test_a_response_of_another_name_that_came_from_here_keeps_it() -> None:
    body = [
        {"role": "user", "parts": [{"text": "go"}]},
        {"role": "model", "parts": [{"functionCall": {"id": "1", "name": "f", "args": {}}}]},
        {"role": "user", "parts": [{"functionResponse": {"id": "1", "name": "g", "response": {}}}]},
    ]

    assert GEMINI.encode(GEMINI.decode(body)).value == body


# ---------------------------------------------------------------- what is said


def test_reasoning_of_other_providers_is_dropped_and_reported() -> None:
    thought = ReasoningPart(text="hm", signature="theirs", metadata={"anthropic-messages": {}})
    messages = (talk("user", "go"), talk("assistant", thought, "yes"))

    assert contents(*messages)[1]["parts"] == [{"text": "yes"}]
    assert losses(*messages) == {"reasoning"}


def test_thoughts_and_proofs_are_given_to_the_model_only() -> None:
    """From another viewpoint its words are a user's, and a user has no thoughts of a model."""
    native = GEMINI.decode(
        [{"role": "model", "parts": [{"text": "hm", "thought": True}, {"text": "yes", "thoughtSignature": "AQ=="}]}]
    )
    value = GEMINI.encode(native, as_policy="another").value

    assert value == [{"role": "user", "parts": [{"text": "yes"}]}]


def test_citations_and_data_are_reported() -> None:
    cited = TextPart(text="yes", citations=(Citation(title="Sky"),))
    messages = (talk("user", "go"), talk("assistant", cited, DataPart(data={"a": 1})))

    assert contents(*messages)[1]["parts"] == [{"text": "yes"}, {"text": '{"a":1}'}]
    assert losses(*messages) == {"citations", "data", "text"}


@pytest.mark.parametrize(
    ("url", "mime", "part"),
    [
        ("data:image/png;base64,AAAA", None, {"inlineData": {"mimeType": "image/png", "data": "AAAA"}}),
        (
            "https://x.example/a.webp?s=1",
            None,
            {"fileData": {"mimeType": "image/webp", "fileUri": "https://x.example/a.webp?s=1"}},
        ),
        ("gs://b/x", "image/heic", {"fileData": {"mimeType": "image/heic", "fileUri": "gs://b/x"}}),
        ("urn:gemini-file:files%2Fa", None, {"fileData": {"mimeType": "image/png", "fileUri": "files/a"}}),
        ("urn:openai-file:file-1", None, {"text": "[image the cat]"}),
    ],
)
def test_media_are_shown_where_the_service_can_reach_them(url: str, mime: str | None, part: dict[str, Any]) -> None:
    """OP-055: what another provider holds is described."""
    medium = MediaPart(modality="image", url=url, mime=mime, prompt_hint="the cat")

    assert contents(talk("user", medium))[0]["parts"] == [part]


def test_media_have_labels_on_request() -> None:
    """OP-056."""
    one, two = (MediaPart(modality="image", url=f"https://x.example/{name}.png") for name in "ab")
    said = contents(talk("user", "Compare", one), talk("assistant", one), talk("user", two), media_labels=True)

    assert [part.get("text", "…") for content in said for part in content["parts"]] == [
        "Compare",
        "Media 1:",
        "…",
        "…",
        "Media 2:",
        "…",
    ]


def test_an_option_that_is_not_there_is_a_mistake() -> None:
    with pytest.raises(TypeError, match="gemini has no option 'image_detail'"):
        GEMINI.encode(Conversation([]), image_detail="high")


def test_settings_of_a_part_go_with_it() -> None:
    """OP-064: how finely to look, which part of a film."""
    film = MediaPart(
        modality="video",
        url="gs://b/x.mp4",
        metadata={"gemini": {"videoMetadata": {"fps": 2}, "mediaResolution": {"level": "LOW"}}},
    )

    assert contents(talk("user", film))[0]["parts"] == [
        {
            "fileData": {"mimeType": "video/mp4", "fileUri": "gs://b/x.mp4"},
            "videoMetadata": {"fps": 2},
            "mediaResolution": {"level": "LOW"},
        }
    ]


def test_the_written_value_belongs_to_the_caller() -> None:
    native = GEMINI.decode(samples("gemini", "request")[1].body)
    first = GEMINI.encode(native).value
    first["contents"][0]["parts"][2]["videoMetadata"]["fps"] = 99
    first["contents"][1]["parts"][0]["functionCall"]["args"]["x"] = 1

    assert GEMINI.encode(native).value == samples("gemini", "request")[1].body

"""OpenAI Responses there and back: the same data, whatever it is, and after an edit all but the edit."""

from typing import Any

import pytest
from hypothesis import given
from tests.dialects.openai_responses.items import BETA, HOSTED, OWN_WORDS, one_of_each
from tests.dialects.openai_responses.mutations import mutated
from tests.providers.samples import samples
from tests.providers.types import as_request, problems

from antiphon import Conversation, Message, PartsPayload, TextPart, decode, encode
from antiphon.dialects import get
from antiphon.errors import DecodeError
from antiphon.messages import Citation, Tool
from antiphon.messages._json_values import canonical
from antiphon.testing import check_dialect

RESPONSES = "openai-responses"


def edited(conversation: Conversation, place: int, message: Message) -> Any:
    """What is written with another message in one place."""
    after = [*conversation[:place], message, *conversation[place + 1 :]]
    return encode(Conversation(after, tools=conversation.tools, metadata=conversation.metadata), RESPONSES).value


@pytest.mark.parametrize("sample", [each for each in samples(RESPONSES) if each.kind != "stream"], ids=str)
def test_every_sample_keeps_all_promises(sample: Any) -> None:
    check_dialect(get(RESPONSES), [sample.body])


@pytest.mark.parametrize("item", one_of_each(), ids=lambda item: str(item.get("type")))
def test_every_kind_of_item_keeps_all_promises(item: dict[str, Any]) -> None:
    """Hosted tools, programs, agents of the beta and what nobody knows yet."""
    check_dialect(get(RESPONSES), [[item], {"model": "m", "input": [item]}])


def test_items_keep_all_promises_among_others() -> None:
    assert problems(RESPONSES, "request", as_request(RESPONSES, [*OWN_WORDS, *HOSTED])) == []

    check_dialect(get(RESPONSES), [OWN_WORDS[:6], OWN_WORDS[6:], BETA])


@pytest.mark.parametrize(
    "body",
    [
        [],
        {"input": []},
        {"output": []},
        {"output": one_of_each()},
        *one_of_each()[:3],
        [{"type": "reasoning", "summary": []}],
        {"model": "m", "input": "hi"},
        {"model": "m", "instructions": None, "input": "", "tools": []},
        {"model": "m", "instructions": "", "input": "hi"},
        {"id": "resp_1", "object": "response", "instructions": [{"role": "user", "content": "x"}], "output": []},
    ],
)
def test_every_shape_comes_back_as_it_came(body: Any) -> None:
    encoded = encode(decode(body, RESPONSES), RESPONSES)

    assert canonical(encoded.value) == canonical(body)
    assert encoded.losses == ()


@given(mutated())
def test_an_accepted_body_comes_back_and_any_other_is_a_decode_error(body: Any) -> None:
    """Never a crash, and no data is accepted that would not come back."""
    try:
        conversation = decode(body, RESPONSES)
    except DecodeError:
        return
    encoded = encode(conversation, RESPONSES)

    assert canonical(encoded.value) == canonical(body)
    assert encoded.losses == ()


def test_a_text_given_as_input_stays_one_as_long_as_it_is_all() -> None:
    conversation = decode({"model": "m", "input": "hi"}, RESPONSES)
    other = conversation[0].model_copy(update={"payload": PartsPayload(parts=(TextPart(text="hello"),))})

    assert edited(conversation, 0, other) == {"model": "m", "input": "hello"}
    answer = Message(policy="assistant", payload=PartsPayload(parts=(TextPart(text="yes"),)))
    assert encode(conversation.append(answer), RESPONSES).value == {
        "model": "m",
        "input": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes"}],
    }


def test_an_edited_answer_keeps_its_ids_phase_and_form() -> None:
    """Item ids, phase and log probabilities are replayed; a list of one text stays a list."""
    sample = next(each for each in samples(RESPONSES, "request"))
    conversation = decode(sample.body, RESPONSES)
    place = next(place for place, message in enumerate(conversation) if message.id == "msg_01")
    part = conversation[place].parts[0]
    words = PartsPayload(parts=(part.model_copy(update={"text": "Wait."}),))
    value = edited(conversation, place, conversation[place].model_copy(update={"payload": words}))

    expected = sample.body
    expected["input"][place - 1]["content"][0]["text"] = "Wait."
    assert value == expected


def test_edited_citations_are_edited_annotations() -> None:
    (sample,) = samples(RESPONSES, "response")
    conversation = decode(sample.body, RESPONSES)
    place = next(place for place, message in enumerate(conversation) if message.id == "msg_9")
    text, refusal = conversation[place].parts
    cited = (Citation(source="file-2", title="b.pdf", start=3),)
    words = PartsPayload(parts=(text.model_copy(update={"citations": cited}), refusal))
    value = edited(conversation, place, conversation[place].model_copy(update={"payload": words}))

    annotations = value["output"][place]["content"][0]["annotations"]
    assert annotations == [{"type": "file_citation", "file_id": "file-2", "filename": "b.pdf", "index": 3}]


def test_reasoning_is_replayed_as_it_was() -> None:
    """The proof, an empty summary, and the item that it belongs to."""
    sample = next(each for each in samples(RESPONSES, "request"))
    items = sample.body["input"]
    written = encode(decode(sample.body, RESPONSES), RESPONSES).value["input"]

    assert [item for item in written if item.get("type") == "reasoning"] == [
        item for item in items if item.get("type") == "reasoning"
    ]
    assert written[2]["summary"] == []


def test_the_services_own_tools_come_back_beside_a_tool_that_is_added() -> None:
    body = {"input": "hi", "tools": [{"type": "web_search"}, {"type": "custom", "name": "sh", "format": {"type": "text"}}]}
    conversation = decode(body, RESPONSES)

    assert [tool.name for tool in conversation.tools] == ["sh"]
    assert encode(conversation, RESPONSES).value == body
    more = Conversation(conversation, tools=(*conversation.tools, Tool(name="now")), metadata=conversation.metadata)
    names = [tool["name"] for tool in encode(more, RESPONSES).value["tools"]]
    assert names == ["sh", "now"]


def test_an_answer_joins_the_history_it_answers() -> None:
    """A request and the response to it make the next request: the settings stay, the items follow."""
    (first, *_), (response,) = samples(RESPONSES, "request"), samples(RESPONSES, "response")
    history = decode(first.body, RESPONSES).extend(decode(response.body, RESPONSES))
    again = encode(history, RESPONSES).value

    assert again == {**first.body, "input": [*first.body["input"], *response.body["output"]]}

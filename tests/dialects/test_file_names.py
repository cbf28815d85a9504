"""A hint is what a prompt calls a medium, a file name what its file is called: two things, each with its own losses."""

import pytest

from antiphon.dialects import convert, decode, encode
from antiphon.messages import Conversation, MediaPart, Message, PartsPayload, dumps, loads

CHAT, RESPONSES, CLAUDE = "openai-chat", "openai-responses", "anthropic-messages"
PDF = "data:application/pdf;base64,JVBERi0xLjQK"


def document(hint: str | None = None, name: str | None = None, url: str = PDF) -> Conversation:
    metadata = {} if name is None else {"file": {"name": name}}
    part = MediaPart(modality="document", url=url, prompt_hint=hint, metadata=metadata)
    return Conversation([Message(policy="user", role_hint_for_llm="user", payload=PartsPayload(parts=(part,)))])


def written(conversation: Conversation, dialect: str) -> tuple[str | None, set[str]]:
    """Return the name that is written of the one document, and what is lost."""
    encoded = encode(conversation, dialect)
    body = encoded.value
    block = (body["input"] if dialect == RESPONSES else body["messages"])[0]["content"][0]
    name = block["file"].get("filename") if dialect == CHAT else block.get("title" if dialect == CLAUDE else "filename")
    return name, {loss.what for loss in encoded.losses}


@pytest.mark.parametrize(
    ("dialect", "name"), [(CHAT, None), (RESPONSES, "document.pdf")]
)  # the second refuses bytes without a name
def test_a_hint_is_no_file_name_and_that_it_is_lost_is_reported(dialect: str, name: str | None) -> None:
    # Mutant: `part.file_name or part.prompt_hint` as the name in both `_medium` -> red.
    found, losses = written(document("the radar, last night"), dialect)

    assert found == name
    assert "hint" in losses


def test_a_name_that_a_format_makes_up_is_no_loss() -> None:
    """OpenAI Responses refuses bytes without a name."""
    assert written(document(), RESPONSES) == ("document.pdf", set())


@pytest.mark.parametrize("dialect", [CHAT, RESPONSES, CLAUDE])
def test_a_file_name_comes_back_as_one(dialect: str) -> None:
    found, losses = written(document(name="q3 report.pdf"), dialect)
    (message,) = decode(encode(document(name="q3 report.pdf"), dialect).value, dialect)
    (part,) = message.parts

    assert found == "q3 report.pdf"
    assert not losses & {"hint", "filename"}
    assert isinstance(part, MediaPart)
    assert (part.file_name, part.prompt_hint) == ("q3 report.pdf", None)


def test_both_are_kept_where_there_is_a_place_for_both_and_else_the_loss_is_reported() -> None:
    both = document("the radar", "r.pdf")

    assert written(both, CHAT)[0] == "r.pdf"
    assert written(both, CHAT)[1] == {"hint"}
    assert written(both, CLAUDE) == ("the radar", {"filename"})
    assert {"hint", "filename"} <= {loss.what for loss in encode(both, "gemini").losses}
    assert {"hint", "filename"} <= {loss.what for loss in encode(both, "pydantic-ai").losses}
    (part,) = next(iter(loads(dumps(both), Conversation))).parts
    assert isinstance(part, MediaPart)
    assert (part.prompt_hint, part.file_name) == ("the radar", "r.pdf")


def test_names_travel_between_formats_that_have_a_place_for_them() -> None:
    body = {"messages": [{"role": "user", "content": [{"type": "file", "file": {"filename": "a.pdf", "file_data": PDF}}]}]}

    assert convert(body, source=CHAT, target=RESPONSES).value["input"][0]["content"][0]["filename"] == "a.pdf"
    there = convert(body, source=CHAT, target=CLAUDE).value
    assert there["messages"][0]["content"][0]["title"] == "a.pdf"
    assert convert(there, source=CLAUDE, target=CHAT).value["messages"][0]["content"][0]["file"]["filename"] == "a.pdf"


def test_a_title_that_is_no_file_name_is_a_hint() -> None:
    block = {
        "type": "document",
        "source": {"type": "url", "url": "https://e.example/a.pdf"},
        "title": "Report of May. 3 pages",
    }
    body = {"messages": [{"role": "user", "content": [block]}]}
    conversation = decode(body, CLAUDE)
    (part,) = next(iter(conversation)).parts

    assert isinstance(part, MediaPart)
    assert (part.prompt_hint, part.file_name) == ("Report of May. 3 pages", None)
    assert encode(conversation, CLAUDE).value == body

"""The house format: bytes that are a function of the content, and a door that lets nothing else in."""

import json
import sys
import time
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from inline_snapshot import snapshot
from pydantic import ValidationError
from tests import strategies

from antiphon import Conversation, DataPart, MediaPart, Message, OptionCallPayload, PartsPayload, TextPart, dumps, loads
from antiphon.errors import DecodeError
from antiphon.messages import Limits, OptionResultPayload, Tool, _house, use_limits
from antiphon.messages._json_values import write
from antiphon.messages._model import HOUSE_VERSION
from antiphon.messages._settings import current_limits
from antiphon.messages._unchecked import house_bytes

SAMPLES = Path(__file__).parent / "house"
MIB = 1024 * 1024


def said(text: str = "hi", **fields: Any) -> Message:
    return Message(**{"id": "m-1", "policy": "user", "payload": PartsPayload(parts=(TextPart(text=text),)), **fields})


def called(arguments: Any) -> Message:
    payload = OptionCallPayload(invocation_id="i-1", option_name="search", arguments=arguments)
    return Message(id="m-1", policy="assistant", payload=payload)


CALL = dumps(called({"q": "MARK"}))


def call_with(text: bytes) -> bytes:
    """A stored call in which one argument is this JSON text."""
    return CALL.replace(b'"MARK"', text)


# ---------------------------------------------------------------- round trips


@pytest.mark.slow
@settings(max_examples=3 * settings.default.max_examples)
@given(strategies.messages)
def test_a_message_written_read_and_written_again_is_the_same_bytes(message: Message) -> None:
    """G10, OP-002: for every message that can be built, the bytes are a function of the content."""
    data = dumps(message)

    again = loads(data, Message)

    assert again == message
    assert dumps(again) == data


@pytest.mark.slow
@given(strategies.conversations)
def test_a_conversation_written_read_and_written_again_is_the_same_bytes(conversation: Conversation) -> None:
    data = dumps(conversation)

    again = loads(data, Conversation)

    assert again == conversation
    assert dumps(again) == data
    assert len(data.splitlines()) == len(conversation) + 1


@pytest.mark.slow
@given(strategies.messages)
def test_looking_at_a_message_does_not_change_what_it_writes(message: Message) -> None:
    """JSON is parsed when it is first looked at; that must not show."""
    before = dumps(message)

    repr(message), dict(message), hash(message.payload), message.metadata

    assert dumps(message) == before


@pytest.mark.slow
@given(strategies.messages)
def test_pydantics_own_json_carries_the_same_message(message: Message) -> None:
    assert Message.model_validate_json(message.model_dump_json()) == message
    assert Message.model_validate(message.model_dump()) == message


@pytest.mark.slow
@given(strategies.messages)
def test_any_spacing_and_escaping_of_the_same_json_is_the_same_message(message: Message) -> None:
    """What is not in our own form takes the slow way, to the same end."""
    spaced = json.dumps(json.loads(dumps(message)), ensure_ascii=True, separators=(" , ", " : ")).encode()

    assert loads(spaced, Message) == message


@pytest.mark.slow
@given(strategies.messages)
def test_the_form_of_a_hot_class_is_the_general_one(message: Message) -> None:
    """`Message` and some others write themselves by hand, for speed; the base class is the specification."""
    from antiphon.messages._model import Model

    for model in (message, message.payload, *message.parts):
        form, general = model.__house__(), Model.__house__(model)

        assert list(form) == list(general)
        assert house_bytes(form) == house_bytes(general)


def test_looking_at_a_tool_does_not_change_what_is_written() -> None:
    given_, default = Tool(name="t", parameters={}), Tool(name="t")
    conversation = Conversation(tools=[given_])
    before = dumps(conversation)

    assert given_.parameters == {}
    assert dumps(conversation) == before
    assert given_ == default


def test_an_empty_result_is_a_result() -> None:
    shown = (TextPart(text="x"),)
    for parts in ((), shown):
        empty = said(payload=OptionResultPayload(invocation_id="i", option_name="o", result={}, parts=parts))
        again = loads(dumps(empty), Message)

        assert b'"result":{}' in dumps(empty)
        assert again == empty
        assert dumps(again) == dumps(empty)


def test_only_messages_and_conversations_are_written() -> None:
    with pytest.raises(TypeError, match="a message or a conversation, not dict"):
        dumps({})  # type: ignore[arg-type]


def test_the_written_form_is_plain() -> None:
    message = said("hé", step_num=1, metadata={"mine": {"b": 1, "a": [True, None, 1.0, 10**30]}})

    assert dumps(message).decode() == snapshot(
        '{"antiphon":1,"id":"m-1","policy":"user","payload":{"kind":"parts","parts":[{"kind":"text","text":"hé"}]},'
        '"step_num":1,"metadata":{"mine":{"b":1,"a":[true,null,1.0,1000000000000000000000000000000]}}}'
    )


def test_a_conversation_is_a_file_of_lines() -> None:
    tool = Tool(name="search", parameters={"type": "object"})
    conversation = Conversation([said()], tools=[tool], metadata={"openai-chat": {"temperature": 0.5}})

    assert dumps(conversation).decode() == snapshot("""\
{"antiphon":1,"conversation":{"tools":[{"name":"search","parameters":{"type":"object"}}],"metadata":{"openai-chat":{"temperature":0.5}}}}
{"antiphon":1,"id":"m-1","policy":"user","payload":{"kind":"parts","parts":[{"kind":"text","text":"hi"}]}}
""")


def test_a_file_grows_by_appending_lines() -> None:
    conversation = Conversation([said()])

    grown = dumps(conversation) + dumps(said("more")) + b"\n"

    assert loads(grown, Conversation) == conversation.append(said("more"))


# ---------------------------------------------------------------- versions


def test_the_sample_of_the_format_loads_and_is_written_the_same() -> None:
    data = (SAMPLES / f"v{HOUSE_VERSION}.jsonl").read_bytes()
    conversation = loads(data, Conversation)

    assert len(conversation) == len(data.splitlines()) - 1
    assert dumps(conversation) == data


@pytest.mark.parametrize("version", [b"2", b"99", b"123456789012345678901234567890"])
def test_a_newer_version_is_refused_by_name(version: bytes) -> None:
    with pytest.raises(DecodeError, match=rf"house format {version.decode()}.*reads up to 1: upgrade"):
        loads(CALL.replace(b'"antiphon":1', b'"antiphon":' + version))


@pytest.mark.parametrize("version", [b"0", b"-1", b"true", b"1.0", b'"1"', b"null", b"[1]"])
def test_something_else_than_a_version_is_no_house_format(version: bytes) -> None:
    with pytest.raises(DecodeError, match="no house format"):
        loads(CALL.replace(b'"antiphon":1', b'"antiphon":' + version))


# ---------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"", "empty document"),
        (b"\n", "empty document"),
        (b"[]", "not a JSON object"),
        (b"{}", "no house format"),
        (b"\xef\xbb\xbf" + CALL, "BOM"),
        (CALL.decode().encode("utf-16"), "UTF-16"),
        (CALL.decode().encode("utf-16-be"), "UTF-16"),
        (CALL.decode().encode("utf-32"), "UTF-32"),
        (call_with(b'"\xc0\xaf"'), "not valid UTF-8"),
        (call_with(b'"\xe9"'), "not valid UTF-8"),
        (call_with(b'"\xed\xa0\x80"'), "not valid UTF-8"),
        (call_with(b'"\\ud800"'), "surrogate"),
        (call_with(b'"\\udc00"'), "surrogate"),
        (call_with(b"NaN"), "not JSON"),
        (call_with(b"-Infinity"), "not JSON"),
        (call_with(b"1e400"), "number 1e400 is too large"),
        (call_with(b'[1e400,"\\ud800"]'), "too large"),
        (call_with(b"9" * 400 + b',"b":"\\ud800"'), "surrogate"),
        (call_with(b"9" * 400 + b',"b":NaN'), "not JSON"),
        (call_with(b"9" * 400 + b',"b":' + b"[" * 100_000 + b"]" * 100_000), "nested too deep"),
        (call_with(b"01"), "not JSON"),
        (call_with(b"1" * 4301), "more than 4300 digits"),
        (call_with(b'{"a":1,"a":1}'), "'a' stands twice"),
        (CALL.replace(b'"option_call"', b'"option_call","kind":"option_call"'), "'kind' stands twice"),
        (CALL + b" x", "unexpected content after document"),
        (CALL + b"\n" + CALL, "more after the message"),
        (CALL[:-1], "unexpected end"),
        (b"[" * 100_000 + b"]" * 100_000, "depth limit"),
        (call_with(b"[" * 100_000 + b"]" * 100_000), "depth limit"),
        (call_with(b"[" * 300 + b"]" * 300), "nested too deep"),
        (call_with(b"[" * 64 + b"]" * 64), "nested deeper than 64"),
        (call_with(b'{"a":' * 64 + b"1" + b"}" * 64), "nested deeper than 64"),
    ],
)
def test_bad_bytes_are_a_typed_error(data: bytes, complaint: str) -> None:
    """S8, G21: strange JSON is refused at the door, and the error says what is wrong."""
    with pytest.raises(DecodeError, match=complaint) as caught:
        loads(data)

    assert caught.value.dialect == "antiphon"
    assert not caught.value.retryable


@pytest.mark.parametrize(
    ("change", "where", "complaint"),
    [
        (lambda form: form.pop("policy"), "policy", "Field required"),
        (lambda form: form.update(policy="a\x00b"), "policy", "A name is"),
        (lambda form: form.update(policy=""), "policy", "A name is"),
        (lambda form: form.update(policy="x" * 513), "policy", "A name is"),
        (lambda form: form.update(policy="e\u0301"), "policy", "A name is"),
        (lambda form: form.update(policy="a\x7fb"), "policy", "A name is"),
        (lambda form: form.update(policy=7), "policy", "string|A name is"),
        (lambda form: form.update(actor="me"), "actor", "Extra inputs"),
        (lambda form: form.update(step_num="3"), "step_num", "integer"),
        (lambda form: form.update(step_num=-1), "step_num", "greater than or equal"),
        (lambda form: form.update(created_at=1), "created_at", "A time is"),
        (lambda form: form.update(created_at="2026-01-01T00:00:00"), "created_at", "needs its zone"),
        (lambda form: form.update(created_at="2026-01-01T00:00:00.123456789Z"), "created_at", "A time is|microseconds"),
        (lambda form: form.update(metadata={"a": 1}), "metadata.a", "namespace"),
        (lambda form: form.update(metadata=[]), "metadata", "JSON object"),
        (lambda form: form.update(metadata={"a\x00": {}}), "metadata.'a\\x00'", "A namespace is a name"),
        (lambda form: form["payload"].update(kind="action_call"), "payload", "does not match any of the expected tags"),
        (lambda form: form["payload"].pop("kind"), "payload", "Unable to extract tag"),
        (lambda form: form["payload"].update(arguments=[]), "payload.arguments", "instance of dict|JSON object"),
        (lambda form: form.update(usage={"cost": "free"}), "usage.cost", "A cost is"),
        (lambda form: form.update(usage={"cost": 0.1}), "usage.cost", "A cost is"),
        (lambda form: form.update(to="me"), "to", "valid tuple"),
    ],
)
def test_a_bad_field_is_named_by_its_path(change: Callable[[Any], Any], where: str, complaint: str) -> None:
    form = json.loads(CALL)
    change(form)

    with pytest.raises(DecodeError, match=complaint) as caught:
        loads(orjson.dumps(form))

    assert caught.value.where == where


def test_a_path_goes_into_parts_and_json() -> None:
    payload = PartsPayload(parts=(TextPart(text="a"), DataPart(data={"rows": [{"n": "MARK"}]})))
    data = dumps(Message(policy="user", payload=payload)).replace(b'"MARK"', b"[" * 62 + b"]" * 62)

    with pytest.raises(DecodeError) as caught:
        loads(data)

    assert caught.value.where.startswith("payload.parts[1].data.rows[0].n[0][0]")


@pytest.mark.parametrize(
    ("form", "where"),
    [
        ({"kind": "parts", "parts": [{"kind": "text", "text": 7}]}, "payload.parts[0].text"),
        ({"kind": "parts", "parts": [{"kind": "text", "text": "a", "x": 1}]}, "payload.parts[0].x"),
        ({"kind": "parts", "parts": [{"kind": "nothing"}]}, "payload.parts[0]"),
        ({"kind": "parts", "parts": 7}, "payload.parts"),
        (
            {"kind": "parts", "parts": [{"kind": "text", "text": "", "citations": [{"end": -1}]}]},
            "payload.parts[0].citations[0].end",
        ),
        ({"kind": "option_result", "invocation_id": "i", "option_name": "o", "is_error": True}, "payload"),
        ({"kind": "option_result", "invocation_id": "i", "option_name": "o", "parts": [{}]}, "payload.parts[0]"),
        ({"kind": "option_call", "invocation_id": "i", "option_name": "o", "arguments": {}, "kind2": 1}, "payload.kind2"),
    ],
)
def test_a_path_has_no_step_that_is_not_in_the_data(form: Any, where: str) -> None:
    """A union's tag may be spelled like a key, and is still no step."""
    with pytest.raises(DecodeError) as caught:
        loads(orjson.dumps({"antiphon": 1, "id": "m", "policy": "user", "payload": form}))

    assert caught.value.where == where


def test_an_error_in_a_file_names_the_line() -> None:
    data = dumps(Conversation([said(), said(), said()]))

    with pytest.raises(DecodeError, match="unexpected end") as torn:
        loads(data[:-10])
    with pytest.raises(DecodeError) as wrong:
        loads(data.replace(b'"user"', b'""', 2))

    assert torn.value.where == "line 4"
    assert wrong.value.where == "line 2: policy"


@pytest.mark.parametrize(
    ("line", "where"),
    [
        (b'{"antiphon":1,"conversation":{},"x":1}', "line 1"),
        (b'{"antiphon":1,"conversation":{"tools":[{}]}}', "line 1: conversation.tools[0].name"),
        (b'{"antiphon":1,"conversation":7}', "line 1: conversation"),
    ],
)
def test_a_bad_first_line_of_a_file_is_named(line: bytes, where: str) -> None:
    with pytest.raises(DecodeError) as caught:
        loads(line)

    assert caught.value.where == where


def test_more_than_one_complaint_is_counted() -> None:
    with pytest.raises(DecodeError, match="and 1 more"):
        loads(b'{"antiphon":1,"id":"m"}')


def test_something_else_than_expected_is_an_error() -> None:
    with pytest.raises(DecodeError, match="expected a conversation, found a message"):
        loads(CALL, Conversation)
    with pytest.raises(DecodeError, match="expected a message, found a conversation"):
        loads(dumps(Conversation()), Message)


@pytest.mark.slow
@given(st.binary(max_size=200) | strategies.messages.map(dumps), st.data())
def test_any_bytes_give_a_message_or_a_typed_error(data: bytes, draw: st.DataObject) -> None:
    """G21: no input crashes the door."""
    if data:
        spot = draw.draw(st.integers(min_value=0, max_value=len(data) - 1))
        data = data[:spot] + draw.draw(st.binary(max_size=3)) + data[spot + 1 :]
    with suppress(DecodeError):
        loads(data)


@pytest.mark.slow
@given(strategies.json_objects)
def test_reserved_keys_in_payloads_are_plain_data(arguments: dict[str, Any]) -> None:
    """S2: no key in user data has a meaning, at any depth; it comes back as the plain value it was."""
    again = loads(dumps(called(arguments)), Message)

    assert isinstance(again.payload, OptionCallPayload)
    assert again.payload.arguments == arguments


# ---------------------------------------------------------------- the quick way


@pytest.mark.slow
@given(strategies.messages)
def test_the_quick_way_reads_what_the_careful_way_reads(message: Message) -> None:
    data = dumps(message)
    quick = _house._quickly(data, current_limits())

    assert _house._carefully(data, current_limits()) == message
    assert quick is None or (quick == message and dumps(quick) == data and quick.model_dump() == message.model_dump())


@pytest.mark.slow
@given(strategies.messages, st.data())
def test_the_quick_way_never_takes_what_the_careful_way_refuses(message: Message, draw: st.DataObject) -> None:
    """Whatever is put into a field, or into the payload."""
    form = json.loads(dumps(message))
    target = draw.draw(st.sampled_from([form, form["payload"], *form["payload"].get("parts", [])]))
    key = draw.draw(st.sampled_from(sorted(target)))
    wrong = st.one_of(strategies.json_values, st.sampled_from(["", "a\x00", " a", "e\u0301", "2026-01-01", 1.0, True, -1]))
    target[key] = draw.draw(wrong)
    data = write(form)
    quick = _house._quickly(data, current_limits())

    if quick is not None:
        assert _house._carefully(data, current_limits()) == quick


@pytest.mark.parametrize("depth", [63, 64, 65, 100, 200])
def test_the_quick_way_sees_depth_wherever_it_is(depth: int) -> None:
    """A wide value hides no deep one, beside the large value or in it."""
    deep = b"[" * depth + b"]" * depth
    wide = b"[" + b",".join([b"{}"] * 80) + b"]"
    call = call_with(b'"x"').replace(b'{"q":"x"}', b'{"a":%b,"q":%b}' % (wide, deep[1:-1] or b"1"))
    shown = b'"result":%b,"parts":[{"kind":"data","data":%b}]' % (wide, deep)
    result = call_with(b'"x"').replace(b'"arguments":{"q":"x"}', shown).replace(b"option_call", b"option_result")
    talk = dumps(Message(id="m", policy="u", payload=PartsPayload(parts=(DataPart(data="MARK"),)))).replace(b'"MARK"', deep)
    for data in (call, result, talk):
        if depth <= 64:
            assert loads(data)
        else:
            with pytest.raises(DecodeError, match="nested deeper|too deep"):
                loads(data)


def test_the_quick_way_is_taken() -> None:
    """If a Pydantic release changes the schema's shape, the shortcut must not vanish unnoticed."""
    result = OptionResultPayload(invocation_id="i", option_name="o", result={"rows": [1, None]})
    messages = [said("hi", created_at="2026-01-01T00:00:00.5Z"), called({"a": [1]}), said(payload=result, turn_id="t")]
    for message in messages:
        quick = _house._quickly(dumps(message), current_limits())
        assert quick == message
    lean = repr(_house._without_checks(Message.__pydantic_core_schema__))

    assert "_within_limits" not in lean
    assert "_error_fields" not in lean
    assert "'custom_error_type': 'name'" not in lean
    assert "read_time" not in lean


# ---------------------------------------------------------------- the edge of what is allowed


@pytest.mark.slow
def test_every_message_that_can_be_built_can_be_read_at_every_limit() -> None:
    """The constructors and `loads` draw the same line, to the byte."""
    room = MIB - len(dumps(said("")))
    large = Tool(name="t", description="x" * 700_000)
    for message in (
        said("a" * room),
        Message(id="1", policy="u", payload=PartsPayload(parts=(DataPart(data=[10**4299, -(10**4299)]),))),
        Message(id="1", policy="u", payload=PartsPayload(parts=(MediaPart(modality="image", url="DATA:,", id="x"),))),
        Message(id="1", policy="u", payload=PartsPayload(parts=(MediaPart(modality="image", url="DATA:," + "A" * 2 * MIB),))),
        Message(id="1", policy="u", payload=PartsPayload(parts=(DataPart(data=[0] * 90_000), DataPart(data=[0] * 90_000)))),
    ):
        assert loads(dumps(message)) == message
    header = Conversation(tools=[large, large, large])
    assert loads(dumps(header)) == header
    with pytest.raises(ValidationError, match="more than 1048576"):
        said("a" * (room + 1))
    with pytest.raises(ValidationError, match="270000 values|more than 200000"):
        Message(id="1", policy="u", payload=PartsPayload(parts=(DataPart(data=[0] * 90_000),) * 3))
    with (
        pytest.raises(ValidationError, match="Tools and metadata have"),
        use_limits(Limits(message_bytes=10, data_url_bytes=10)),
    ):
        Conversation(tools=[Tool(name="t")])


@pytest.mark.parametrize("text", ["0001-01-01T00:00:00+02:00", "9999-12-31T23:59:59-02:00"])
def test_a_time_beyond_the_calendar_is_refused(text: str) -> None:
    with pytest.raises(DecodeError, match="years 1 to 9999") as caught:
        loads(dumps(said(created_at="2026-01-01T00:00:00Z")).replace(b"2026-01-01T00:00:00Z", text.encode()))

    assert caught.value.where == "created_at"


def test_nothing_is_invented_while_reading() -> None:
    """The same bytes are the same message: an id that is missing is an error."""
    with pytest.raises(DecodeError, match="Field required") as caught:
        loads(b'{"antiphon":1,"policy":"user","payload":{"kind":"parts","parts":[]}}')

    assert caught.value.where == "id"


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (1e16, b"1e+16"),
        (1e15, b"1000000000000000.0"),
        (1.5e300, b"1.5e+300"),
        (1e-7, b"1e-7"),
        (0.0001, b"0.0001"),
        (-0.0, b"-0.0"),
        (0.1 + 0.2, b"0.30000000000000004"),
        (5e-324, b"5e-324"),
        (1.7976931348623157e308, b"1.7976931348623157e+308"),
        (123456789012345680.0, b"1.2345678901234568e+17"),
        (2**64, b"18446744073709551616"),
        (-1, b"-1"),
    ],
)
def test_numbers_are_written_in_one_way_for_ever(number: float, text: bytes) -> None:
    """G10: the bytes do not depend on the versions of what writes them."""
    assert b'"data":' + text + b"}" in dumps(Message(policy="u", payload=PartsPayload(parts=(DataPart(data=number),))))


HOSTILE: dict[str, Callable[[], bytes]] = {
    "duplicate among many": lambda: call_with(b"{" + b",".join(b'"%x":1' % number for number in range(60_000)) + b',"ff":1}'),
    "unknown keys": lambda: b'{"antiphon":1,"id":"m",' + b",".join(b'"%x":1' % number for number in range(90_000)) + b"}",
    "wrong parts": lambda: (
        b'{"antiphon":1,"id":"m","policy":"u","payload":{"kind":"parts","parts":[' + b",".join([b"1"] * 99_000) + b"]}}"
    ),
    "wrong receivers": lambda: (
        b'{"antiphon":1,"id":"m","policy":"u","payload":{"kind":"parts","parts":[]},"to":['
        + b",".join([b"1"] * 99_000)
        + b"]}"
    ),
    "many lists": lambda: b'{"antiphon":1,"id":"data:","policy":"u","payload":[' + b",".join([b"[]"] * 4_000_000) + b"]}",
    "many in a mebibyte": lambda: b'{"antiphon":1,"id":"m","policy":"u","payload":[' + b",".join([b"[]"] * 300_000) + b"]}",
}
"""By name; made when they are used, not whenever tests are collected."""


@pytest.mark.slow
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_bytes_cost_little(name: str) -> None:
    """G21, in part: a refusal is quick and its memory has a bound; that bound is more than ten times the input."""
    data = HOSTILE[name]()
    tracemalloc.start()
    start = time.process_time()
    with pytest.raises(DecodeError):
        loads(data)
    spent, (_, peak) = time.process_time() - start, tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert spent < 20  # no more than a guard against a hang: tracing makes it slow, and so may a busy machine
    assert peak < 64 * MIB


def test_strange_keys_are_not_printed_as_they_are() -> None:
    """S9: an error goes to terminals and logs."""
    form = {"antiphon": 1, "id": "m", "policy": "u", "payload": {"kind": "parts", "parts": []}, "\x1b[2J\nERROR": 1}
    with pytest.raises(DecodeError) as strange:
        loads(orjson.dumps(form))
    with pytest.raises(DecodeError) as long:
        loads(orjson.dumps({**form, "x" * 5000: 1, "\x1b[2J\nERROR": 1}).replace(b"\\u001b[2J\\nERROR", b"y"))

    assert str(strange.value) == r"antiphon at '\x1b[2J\nERROR': Extra inputs are not permitted"
    assert len(str(long.value)) < 200


def test_a_python_that_reads_fewer_digits_is_obeyed() -> None:
    before = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(640)
    try:
        with pytest.raises(DecodeError, match="than this Python is set to read"):
            loads(call_with(b"9" * 700))
    finally:
        sys.set_int_max_str_digits(before)


def test_a_duplicate_key_is_found_where_it_is() -> None:
    with pytest.raises(DecodeError) as caught:
        loads(call_with(b'[1,{"a":{"b":1,"b":2}}]'))

    assert caught.value.where == "payload.arguments.q[1].a"


# ---------------------------------------------------------------- size


@pytest.mark.slow
def test_a_photo_is_accepted_inline() -> None:
    url = "data:image/jpeg;base64," + "A" * 4 * MIB
    message = Message(policy="user", payload=PartsPayload(parts=(MediaPart(modality="image", url=url),)))

    assert loads(dumps(message), Message) == message


@pytest.mark.parametrize("size", [MIB + 1, 2 * MIB, 40 * MIB])
def test_a_message_of_more_than_a_mebibyte_is_refused(size: int) -> None:
    data = dumps(said("MARK")).replace(b"MARK", b"a" * (size - len(dumps(said("")))))

    assert len(data) == size
    with pytest.raises(DecodeError, match="more than 1048576"):
        loads(data)


@pytest.mark.slow
def test_data_urls_have_their_own_limit() -> None:
    form = json.loads(house_bytes(said()))
    form["payload"]["parts"] = [{"kind": "media", "modality": "image", "url": "data:," + "A" * 17 * MIB}] * 2

    with pytest.raises(DecodeError, match="data: URLs of the message|more than"):
        loads(b'{"antiphon":1,' + orjson.dumps(form)[1:])


def test_text_does_not_pass_as_a_data_url() -> None:
    """The word `data:` in a text buys no room."""
    data = dumps(said("MARK")).replace(b"MARK", b"data:" + b"a" * 2 * MIB)

    with pytest.raises(DecodeError, match="more than 1048576"):
        loads(data)


def test_a_caller_can_set_other_limits() -> None:
    data = dumps(called({"a": {"b": {"c": 1}}}))

    with pytest.raises(DecodeError, match="nested deeper than 2"):
        loads(data, limits=Limits(depth=2))
    with use_limits(Limits(message_bytes=10)), pytest.raises(DecodeError, match="more than 10"):
        loads(data, Message)
    assert loads(data, Message, limits=Limits(depth=3)) == called({"a": {"b": {"c": 1}}})


@pytest.mark.slow
def test_a_large_array_is_counted_exactly() -> None:
    fits = b"[" + b"1," * 99_000 + b"1]"
    too_many = b"[" + b"1," * 101_000 + b"1]"

    assert loads(call_with(fits), Message)
    with pytest.raises(DecodeError, match="more than 100000 values"):
        loads(call_with(too_many))


@pytest.mark.parametrize(
    "message",
    [
        called({"a": list(range(50))}),
        said(metadata={"mine": {"a": list(range(50))}}),
        said(payload=PartsPayload(parts=(DataPart(data=list(range(50))),))),
    ],
    ids=["arguments", "metadata", "data"],
)
def test_limits_given_to_loads_hold_and_not_those_in_use(message: Message) -> None:
    data = dumps(message)

    with pytest.raises(DecodeError, match="more than 40 values"):
        loads(data, limits=Limits(nodes=40))
    with use_limits(Limits(nodes=40)):
        assert loads(data, limits=Limits()) == message

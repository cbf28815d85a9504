"""The verbs, the registry and detection."""

import json
from collections.abc import Iterator
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

import pytest
from tests.dialects.samples import SAMPLES

import antiphon
from antiphon import Conversation, Message, PartsPayload, TextPart
from antiphon.dialects import Dialect, Encoded, Loss, _registry, detect, get, names
from antiphon.errors import DecodeError, EncodeError
from antiphon.messages import Tool


@pytest.fixture(autouse=True)
def fresh_registry() -> Iterator[None]:
    """Dialects that a test adds are gone after it."""
    get.cache_clear()
    yield
    get.cache_clear()


def test_the_verbs_stand_at_the_top_of_the_package() -> None:
    data = [{"role": "user", "content": "hi"}]
    conversation = antiphon.decode(data, "marsys")

    assert conversation[0].text == "hi"
    assert antiphon.encode(conversation, "marsys") == Encoded(data)
    converted = antiphon.convert(json.dumps(data), source="marsys", target="agent-framework")
    assert converted.value[0]["type"] == "user_message"


def test_dialects_are_known_by_name() -> None:
    assert names()[:5] == ("house", "choir", "marsys", "agent-framework", "atlas")
    for name in names():
        assert get(name).name == name
        assert get(name).summary
    with pytest.raises(LookupError, match="no dialect is called 'esperanto'; there are house, choir"):
        get("esperanto")


def test_others_add_theirs_by_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint("mine", "antiphon.dialects.marsys._dialect:DIALECT", "antiphon.dialects")
    monkeypatch.setattr(_registry, "entry_points", lambda group, name=None: [point] if name in (None, "mine") else [])

    assert names()[-1] == "mine"
    assert get("mine").name == "marsys"


def test_the_installed_packages_are_read_again_only_when_one_was_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading the metadata of all packages takes a hundred times as long as to detect a format."""
    reads: list[str] = []

    def counted(**given: Any) -> Any:
        reads.append(given["group"])
        return entry_points(**given)

    monkeypatch.setattr(_registry, "entry_points", counted)
    monkeypatch.syspath_prepend(tmp_path)
    assert [detect(SAMPLES["atlas"]).name for _ in range(3)] == ["atlas"] * 3
    assert len(reads) == 1

    installed = tmp_path / "elsewhere-1.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: elsewhere\nVersion: 1\n")
    (installed / "entry_points.txt").write_text("[antiphon.dialects]\nelsewhere = no_such_module:DIALECT\n")
    assert "elsewhere" in names()
    assert len(reads) == 2


def test_losses_are_reported_or_refused() -> None:
    said = Message(id="1", policy="user", thread_id="t", payload=PartsPayload(parts=(TextPart(text="hi"),)))
    conversation = Conversation([said], tools=[Tool(name="t")])

    losses = antiphon.encode(conversation, "marsys").losses
    assert losses == (
        Loss("1", "thread_id", "a MARSYS message has no place for it"),
        Loss(None, "tools", "marsys has no place for tools"),
    )
    with pytest.raises(EncodeError, match=r"marsys at message 1: cannot say thread_id: .* \(and 1 more\)"):
        antiphon.encode(conversation, "marsys", losses="raise")
    with pytest.raises(EncodeError, match="cannot say tools"):
        antiphon.encode(Conversation(tools=[Tool(name="t")]), "atlas", losses="raise")
    assert antiphon.encode(conversation, "house", losses="raise").losses == ()


@pytest.mark.parametrize("name", names())
def test_an_unknown_option_is_refused(name: str) -> None:
    with pytest.raises(TypeError, match=f"{name} has no option 'speed'"):
        get(name).encode(Conversation(), speed=3)


@pytest.mark.parametrize("name", SAMPLES)
def test_a_format_is_recognised_by_its_look(name: str) -> None:
    """From parsed JSON, from text, from bytes, from JSON Lines; a list or one unit.

    (A MARSYS message without its id looks like one of Chat Completions.)
    """
    units = SAMPLES[name]
    lines = "\n".join(json.dumps(unit) for unit in units)

    alone = next(unit for unit in units if name != "marsys" or "message_id" in unit)
    for data in (units, alone, json.dumps(units), json.dumps(units).encode(), lines, lines.encode() + b"\n"):
        found = detect(data)
        assert found.name == name, found
        assert found.reason
        assert found.candidates == (name,)


def test_our_own_format_is_recognised() -> None:
    assert detect(antiphon.dumps(Conversation())).name == "house"


@pytest.mark.parametrize("data", [[], {}, [1], "7", b"null", [{"hello": 1}], [{"type": "user_message"}, {"role": "user"}]])
def test_data_of_no_known_format_is_reported_as_unknown(data: Any) -> None:
    found = detect(data)

    assert found.name is None
    assert found.candidates == ()
    assert "none of" in found.reason


def test_data_of_several_possible_formats_is_reported_as_ambiguous(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(_registry._OURS, "twin", "antiphon.dialects.marsys._dialect")
    found = detect([{"role": "user", "content": "hi", "message_id": "1"}])

    assert found.name is None
    assert found.candidates == ("marsys", "twin")
    assert found.reason == "it may be marsys or twin: say which"


def test_json_that_looks_like_lines_is_json() -> None:
    assert detect('[{"role": "user", "content": "a", "message_id": "1"}\n,{"role": "user", "content": "b"}]').name == "marsys"
    assert detect('{"role": "user", "metadata": {}\n}').name == "marsys"


def test_a_broken_dialect_of_another_package_breaks_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint("broken", "no_such_module:DIALECT", "antiphon.dialects")
    monkeypatch.setattr(_registry, "entry_points", lambda group, name=None: [point] if name in (None, "broken") else [])

    assert detect(SAMPLES["atlas"]).name == "atlas"
    with pytest.raises(ImportError):
        get("broken")


def test_written_data_is_recognised() -> None:
    """Tools become types in Choir, which are not in capitals."""
    for name in SAMPLES:
        assert detect(antiphon.convert(SAMPLES["marsys"], source="marsys", target=name).value).name == name


def test_data_that_is_no_json_is_refused() -> None:
    with pytest.raises(DecodeError, match="not JSON"):
        detect(b"{")


def test_the_house_format_is_a_dialect_that_loses_nothing() -> None:
    house: Dialect = get("house")
    one = Message(id="1", policy="user", payload=PartsPayload(parts=()))
    conversation = Conversation([one], metadata={"a": {"b": 1}})

    assert house.decode(antiphon.dumps(conversation)) == conversation
    assert house.decode(antiphon.dumps(one).decode()) == Conversation([one])
    assert house.decode(house.encode(conversation).value) == conversation
    assert house.decode(house.encode(conversation).value[1]) == Conversation([one])


def test_a_viewpoint_makes_the_others_users() -> None:
    """What other agents say to it is a user's."""
    talk = [
        {"role": "system", "content": "rules"},
        {"role": "assistant", "name": "a", "content": "mine"},
        {"role": "assistant", "name": "b", "content": "theirs"},
    ]
    seen = antiphon.encode(antiphon.decode(talk, "marsys"), "marsys", as_policy="a").value

    assert [unit["role"] for unit in seen] == ["system", "assistant", "user"]
    assert [unit.get("name") for unit in seen] == [None, "a", "b"]

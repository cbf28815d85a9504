"""A store of somebody else, which is only a `Log`: `check_log` passes, and what needs no more than a `Log` works with it."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from antiphon import MessageBuilder, service
from antiphon.errors import LedgerCorruptError, LedgerUnavailableError
from antiphon.ledger import Fold, diff, record_reward, replay, rewards_of, transitions
from antiphon.patterns.options import export_transitions
from antiphon.testing import check_log

SPEC = importlib.util.spec_from_file_location("jsonl_store", Path(__file__).parents[2] / "examples" / "jsonl_store.py")
assert SPEC is not None
assert SPEC.loader is not None
example = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(example)


class Deaf(example.JsonLinesLog):  # type: ignore[misc, name-defined]
    """Tells no follower of a commit."""

    async def tail(self, after: str | None = None, *, thread_id: str | None = None) -> Any:
        for place, record in enumerate(self._commits[int(after or 0) :], int(after or 0) + 1):
            yield example.Tailed(record, str(place))


def talk() -> list[Any]:
    asked = MessageBuilder().add_text("What is the weather?").to_message()
    call = MessageBuilder(policy="assistant", step_num=1).add_option_call("weather", {"city": "Oslo"})
    return [asked, *call.to_messages(), MessageBuilder(policy="assistant", step_num=2).add_text("I do not know.").to_message()]


@pytest.mark.slow
async def test_the_store_of_the_example_is_a_log(tmp_path: Path) -> None:
    await check_log(lambda name: example.JsonLinesLog.open(tmp_path / f"{name}.jsonl"))


async def test_what_the_check_finds_in_a_log(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="not so: a tail is live"):
        await check_log(lambda name: Deaf.open(tmp_path / f"{name}.jsonl"), only="a_tail_is_live")


async def test_a_log_is_replayed_compared_rated_exported_and_followed(tmp_path: Path) -> None:
    words = Fold("words/1", 0, lambda count, message: count + len(message.text.split()), dump=int, load=lambda value: value)
    async with example.JsonLinesLog.open(tmp_path / "log.jsonl") as log:
        asked, *rest = messages = talk()
        await log.append("t", [asked], snapshot=words.snapshot(4))
        await log.append("t", rest)
        await log.append("u", [message.model_copy(update={"thread_id": None}) for message in messages[:2]])
        await record_reward(log, "t", rest[-1].id, 0.5, by="ada")
        assert [message.id for message in await replay(log, "t", upto=3)] == [message.id for message in messages]
        assert await replay(log, "t", words) == 8
        assert (await diff(log, "t", "u")).common == 2
        assert (await rewards_of(log, "t"))[rest[-1].id].value == 0.5
        assert [decision.reward for decision in await transitions(log, "t")] == [0.5]
        assert len([row async for row in export_transitions(log, "t")]) == 1
        assert len(await service.read_thread(log, "t")) == 4
        async for item in service.follow(log, thread_id="t"):
            if item.record is not None and item.record.seq == 4:
                break


async def test_a_file_that_was_altered_does_not_open_and_a_line_that_was_cut_off_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    async with example.JsonLinesLog.open(path) as log:
        for message in talk():
            await log.append("t", [message])
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    async with example.JsonLinesLog.open(path) as log:
        assert (await log.head("t")).seq == 2
    path.write_bytes(whole.replace(b"Oslo", b"Rome"))
    with pytest.raises(LedgerCorruptError):
        async with example.JsonLinesLog.open(path):
            pass


async def test_what_is_acknowledged_after_a_failed_append_can_be_read(tmp_path: Path) -> None:
    resource, path = pytest.importorskip("resource"), tmp_path / "log.jsonl"
    one, two, three = (MessageBuilder().add_text(text * 100).to_message() for text in ("one", "two", "three"))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    async with example.JsonLinesLog.open(path) as log:
        await log.append("t", [one])
        resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 100, limits[1]))  # a part of the next line fits
        try:
            with pytest.raises(LedgerUnavailableError, match="open it again"):
                await log.append("t", [two])
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        with pytest.raises(LedgerUnavailableError):
            await log.append("t", [three])
    async with example.JsonLinesLog.open(path) as log:
        await log.append("t", [three])
    async with example.JsonLinesLog.open(path) as log:
        texts = [message.text for message in await replay(log, "t")]
    assert texts in (["one" * 100, "three" * 100], ["one" * 100, "two" * 100, "three" * 100])

"""Keys: what is built can be taken apart again, and stored ids keep their text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.messages import _keys as keys
from antiphon.messages._names import is_name

steps = st.text(min_size=1, max_size=20).filter(keys.is_key)


def test_stored_ids_keep_their_text() -> None:
    """Ledgers hold them: a change here would do effects a second time."""
    asked = keys.child_id("m-1", keys.counted("model", 2))

    assert asked == keys.step_id("m-1", "model=2") == "m-1/model=2"
    assert [keys.begun_id(asked), keys.ended_id(asked), keys.attempt_id(asked, 2)] == [
        "m-1/model=2@begun",
        "m-1/model=2@ended",
        "m-1/model=2@attempt2",
    ]
    assert [keys.again_id("m-1", 2), keys.park_id("m-1"), keys.park_id("m-1", 2)] == ["m-1#2", "m-1#park", "m-1#park2"]
    assert [keys.withdrawn_id("m-1"), keys.settled_id("m-1"), keys.end_id("m-1")] == [
        "m-1#withdrawn",
        "m-1#settled",
        "m-1@end",
    ]
    assert [keys.failed_id("m-1", 1), keys.failed_id("m-1", 2), keys.reopen_id("m-1")] == [
        "m-1#failed",
        "m-1#failed2",
        "m-1#reopen",
    ]
    assert [keys.stop_id("m-1", 1), keys.stop_id("m-1", 2)] == ["m-1#stop", "m-1#stop2"]
    assert [keys.changed_id("m-1", "ab"), keys.patch_id("m-1", "new-greeting")] == ["m-1#changed-ab", "m-1#patch-new-greeting"]
    assert [keys.renamed("m-1"), keys.renamed("m-1~2"), keys.renamed("m~x")] == ["m-1~2", "m-1~3", "m~x~2"]
    assert keys.as_key("a/b") == "sha256:c14cddc033f64b9dea80ea675cf280a0"


@given(st.text(min_size=1, max_size=20), steps, st.integers(1, 99))
def test_an_id_can_be_taken_apart(parent: str, key: str, count: int) -> None:
    made = keys.child_id(parent, keys.counted(key, count))

    assert keys.parent_of(made) == parent
    assert keys.last_key(made) == key
    assert keys.root_of(made) == keys.root_of(parent)
    assert keys.is_below(made, parent)
    assert keys.run_of(made) == parent == keys.run_of(keys.end_id(parent))


def test_an_invocation_is_not_below_one_that_only_begins_like_it() -> None:
    assert keys.is_below("m-1/a/b", "m-1")
    assert not keys.is_below("m-10/a", "m-1")
    assert not keys.is_below("m-1", "m-1")
    assert not keys.is_below(None, "m-1")


def test_a_renamed_id_knows_its_first_name() -> None:
    assert [keys.base_of("m-1~3"), keys.base_of("m-1"), keys.base_of("m~x")] == ["m-1", "m-1", "m~x"]
    assert keys.is_renamed(keys.renamed("m-1"))
    assert not keys.is_renamed("m~x")


@pytest.mark.parametrize("name", ["", "7", "a/b", "a#b", "a~b", "a=b", "x" * 201])
def test_a_text_that_cannot_be_taken_apart_is_no_key(name: str) -> None:
    assert not keys.is_key(name)
    assert keys.is_key(keys.as_key(name))


@given(st.text(max_size=1000))
def test_every_name_has_a_key(name: str) -> None:
    assert keys.is_key(keys.as_key(name))
    assert keys.as_key(keys.as_key(name)) == keys.as_key(name)


def test_an_id_stays_a_name_however_deep_it_is() -> None:
    made = "m-1"
    for _ in range(100):
        made = keys.child_id(made, "x" * 200)

    assert is_name(keys.attempt_id(made, 999))


def test_an_address_has_a_kind_and_a_key() -> None:
    assert [keys.kind_of("thread/t/1"), keys.key_of("thread/t/1")] == ["thread", "t/1"]
    assert [keys.kind_of("clock"), keys.key_of("clock")] == ["clock", ""]

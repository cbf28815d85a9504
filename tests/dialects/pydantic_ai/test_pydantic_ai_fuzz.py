"""Histories with things wrong in them: refused with a reason, or given back exactly."""

from typing import Any

import pytest
from hypothesis import given
from tests.dialects.pydantic_ai.mutations import mutated
from tests.dialects.pydantic_ai.saying import PYDANTIC_AI

from antiphon import decode, encode
from antiphon.errors import DecodeError
from antiphon.messages._json_values import canonical


@pytest.mark.slow
@given(mutated())
def test_an_accepted_history_comes_back_unchanged_and_any_other_is_a_decode_error(value: Any) -> None:
    try:
        conversation = decode(value, PYDANTIC_AI)
    except DecodeError:
        return
    encoded = encode(conversation, PYDANTIC_AI)

    assert canonical(encoded.value) == canonical(value)
    assert not encoded.losses

"""Arguments of a wrong type are refused with a sentence. G21."""

import re
from typing import Literal

import pytest

from antiphon.messages import Conversation, MessageBuilder, OptionResultBuilder
from antiphon.messages._arguments import check_choice, check_each, check_type


def test_an_argument_of_another_type_is_refused_with_what_was_expected() -> None:
    check_type("within", 2.0, float | int | None, "2.0")
    with pytest.raises(TypeError, match=re.escape("within is a float or an int, such as 2.0, not 'soon'")):
        check_type("within", "soon", float | int | None, "2.0")


@pytest.mark.parametrize("values", [None, 5, "ab", {"a": 1}])
def test_a_value_that_is_no_list_is_refused(values: object) -> None:
    with pytest.raises(TypeError, match=re.escape("names is a list, such as ['a'], not")):
        check_each("names", values, str, "'a'")


def test_the_refused_member_of_a_list_is_named() -> None:
    assert check_each("names", iter("ab"), str, "'a'") == ("a", "b")
    with pytest.raises(TypeError, match=re.escape("names[1] is a str, such as 'a', not 5")):
        check_each("names", ["a", 5], str, "'a'")


def test_a_conversation_of_something_else_is_refused() -> None:
    with pytest.raises(TypeError, match="a conversation holds messages, not int"):
        Conversation(5)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]


def test_a_result_builder_says_which_call_it_answers() -> None:
    call = MessageBuilder(policy="user").add_option_call("look", {}).last_option_call
    builder = OptionResultBuilder.response_to(call)
    assert (builder.invocation_id, builder.option_name) == (call.invocation_id, "look")


def test_a_choice_that_does_not_exist_is_refused_with_those_that_do() -> None:
    Shape = Literal["round", "square", "flat"]  # noqa: N806 (a type)
    check_choice("shape", "round", Shape)
    check_choice("shape", None, Shape)
    with pytest.raises(ValueError, match="shape is 'round', 'square' or 'flat', not 'deep'"):
        check_choice("shape", "deep", Shape)

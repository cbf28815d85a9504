"""Schemas: arguments are held against the whole of JSON Schema, and nothing is fetched for it."""

from typing import Any

import pytest

from antiphon.agents.toolkit import Schema


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"required": ["a"]}, {"a": 1}, {}),
        ({"additionalProperties": False, "properties": {"a": {}}}, {"a": 1}, {"a": 1, "b": 2}),
        ({"properties": {"a": {"type": "integer"}}}, {"a": 1}, {"a": True}),
        ({"properties": {"a": {"type": "integer"}}}, {"a": 10**30}, {"a": "1"}),
        ({"properties": {"a": {"format": "date-time"}}}, {"a": "2026-01-01T00:00:00Z"}, {"a": "soon"}),
        ({"properties": {"a": {"format": "ipv4"}}}, {"a": "10.0.0.1"}, {"a": "10.0.0.256"}),
        ({"properties": {"a": {"format": "uuid"}}}, {"a": "0" * 8 + "-0000-0000-0000-" + "0" * 12}, {"a": "0"}),
        ({"properties": {"a": {"format": "email"}}}, {"a": "a@b.example"}, {"a": "a"}),
        ({"$defs": {"n": {"minimum": 2}}, "properties": {"a": {"$ref": "#/$defs/n"}}}, {"a": 2}, {"a": 1}),
        ({"properties": {"a": {"anyOf": [{"const": 1}, {"type": "null"}]}}}, {"a": None}, {"a": 2}),
        ({"if": {"required": ["a"]}, "then": {"required": ["b"]}}, {"a": 1, "b": 1}, {"a": 1}),
        ({"dependentRequired": {"a": ["b"]}}, {"b": 1}, {"a": 1}),
        ({"properties": {"a": {"uniqueItems": True, "contains": {"const": 1}}}}, {"a": [1, 2]}, {"a": [2, 2]}),
        ({"unevaluatedProperties": False, "allOf": [{"properties": {"a": True}}]}, {"a": 1}, {"b": 1}),
        ({"propertyNames": {"pattern": "^[a-z]+$"}}, {"a": 1}, {"A": 1}),
    ],
)
def test_every_keyword_counts(schema: dict[str, Any], good: dict[str, Any], bad: dict[str, Any]) -> None:
    """AT-049, MA-061."""
    assert Schema(schema).problems(good) == ()
    assert Schema(schema).accepts(good)
    assert Schema(schema).problems(bad)
    assert not Schema(schema).accepts(bad)


def test_an_error_does_not_repeat_the_value() -> None:
    """S7: an argument may be a secret."""
    schema = Schema({"properties": {"key": {"type": "integer"}, "mail": {"format": "email"}, "one": {"enum": ["a"]}}})

    said = " ".join(schema.problems({"key": "sk-canary-1", "mail": "sk-canary-2", "one": "sk-canary-3"}))

    assert "key: " in said
    assert "canary" not in said


def test_the_number_of_reported_problems_is_limited() -> None:
    schema = Schema({"additionalProperties": {"type": "integer"}})

    assert schema.problems({f"k{n}": "x" for n in range(50)})[-1] == "and more"


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "nonsense"},
        {"$ref": "http://127.0.0.1:9/schema.json"},
        {"$ref": "file:///etc/passwd"},
        {"$ref": "#/$defs/nothing"},
        {"pattern": "("},
        {"const": {1, 2}},
        {"const": float("nan")},
    ],
)
def test_an_invalid_schema_is_refused_and_nothing_is_fetched(schema: dict[str, Any]) -> None:
    """S6."""
    with pytest.raises(ValueError, match="it is no JSON schema"):
        Schema(schema)


def test_a_pattern_that_takes_for_ever_is_a_refusal() -> None:
    """S8."""
    schema = Schema({"properties": {"a": {"pattern": "^(?=(a+))(a|a)+$"}}})

    assert schema.problems({"a": "a" * 60 + "!"})


def test_schemas_are_equal_by_content() -> None:
    one, two = Schema({"a": 1, "b": 2}), Schema({"b": 2, "a": 1})

    assert one == two
    assert hash(one) == hash(two)
    assert one != Schema({})
    assert one != "schema"
    assert repr(one) == 'Schema({"a":1,"b":2})'
    assert one.to_json() == {"a": 1, "b": 2}

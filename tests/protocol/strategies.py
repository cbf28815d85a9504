"""Envelopes of every kind, for Hypothesis: with and without each field, and with keys that we do not know."""

from typing import Any

from hypothesis import strategies as st
from tests.strategies import json_objects, json_values, keys, texts, times

from antiphon.protocol import ErrorResponse, Message, Response

OWN = {*Response.model_fields, "message_id", "error_message", "error_code"}

types = st.one_of(st.sampled_from(["HEARTBEAT", "CREATE_THREAD", "THREAD_CREATED", "RETRY", "MESSAGE"]), texts)
unknown = st.dictionaries(keys.filter(lambda key: key not in OWN), json_values, max_size=2)
maybe_text = st.none() | texts
optional: dict[str, st.SearchStrategy[Any]] = {
    "id": texts,
    "data": json_objects,
    "sender": maybe_text,
    "receiver": maybe_text,
    "timestamp": times,
    "correlation_id": maybe_text,
}
error_data = st.builds(
    lambda data, text, code: data | {"error_message": text} | code,
    json_objects,
    texts,
    st.just({}) | st.fixed_dictionaries({"error_code": maybe_text}),
)


def _forms(required: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    rest = {name: values for name, values in optional.items() if name not in required}
    return st.builds(lambda known, other: other | known, st.fixed_dictionaries(required, optional=rest), unknown)


message_forms = _forms({"type": types})
response_forms = _forms({"type": types.filter(lambda name: name != "ERROR"), "message_id": maybe_text})
error_forms = _forms({"type": st.just("ERROR"), "data": error_data, "message_id": maybe_text})

envelopes: st.SearchStrategy[Message | Response] = st.one_of(
    message_forms.map(Message.model_validate),
    response_forms.map(Response.model_validate),
    error_forms.map(ErrorResponse.model_validate),
)

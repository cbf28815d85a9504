"""The builders that the format's documents use."""

from antiphon.dialects.agent_framework.message_builder import (
    create_action,
    create_assistant_message,
    create_error,
    create_final,
    create_observation,
    create_task_entry,
    create_user_message,
)


def test_the_seven_builders_of_the_documents_make_what_the_documents_show() -> None:
    """AF-040, AF-041, AF-042, AF-043, AF-044, AF-045, AF-046: with the arguments of their examples."""
    made = [
        create_user_message("Hello", metadata={"user_id": "123"}),
        create_assistant_message("Found 5 tables"),
        create_task_entry("Analyze data", agent_key="worker_1"),
        create_action("list_tables", {"schema": "public"}, agent_key="worker_1"),
        create_observation({"result": "success"}, agent_key="worker_1"),
        create_error({"error_message": "refused", "error_type": "ConnectionError", "tool": "query"}, agent_key="worker_1"),
        create_final({"operation": "display_table", "payload": {"rows": []}, "human_readable_summary": "No rows"}),
    ]
    assert [(each["type"], each.get("agent_key")) for each in made] == [
        ("user_message", None),
        ("assistant_message", None),
        ("task", "worker_1"),
        ("action", "worker_1"),
        ("observation", "worker_1"),
        ("error", "worker_1"),
        ("final", None),
    ]
    assert made[0]["metadata"] == {"user_id": "123"}
    assert made[6]["content"]["operation"] == "display_table"

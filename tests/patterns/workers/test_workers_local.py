"""A flow with a real small language model: the test checks senders and receivers, never the text."""

from collections.abc import Iterator

import pytest
from tests.patterns.workers.test_workers_flows import example

from antiphon.agents.models import model
from antiphon.agents.models._local import LocalModel
from antiphon.dialects.atlas import MessageType
from antiphon.errors import LocalModelError
from antiphon.ledger.memory import MemoryLedger
from antiphon.patterns.workers import conversation
from antiphon.patterns.workers._conversation import structured


@pytest.fixture
def local() -> Iterator[LocalModel]:
    try:
        found = model("local")
    except (LocalModelError, ModuleNotFoundError) as exc:
        pytest.skip(f"the local model was not asked: {exc}")
    assert isinstance(found, LocalModel)
    yield found
    found.server.stop()


@pytest.mark.slow
async def test_a_question_is_answered_by_a_model_that_says_what_it_likes(local: LocalModel) -> None:
    """AT-043: the example of the documentation, with `local`; however long it takes, and whatever it reports meanwhile."""
    module, ledger = example(), MemoryLedger()
    async with module.workers(ledger, local) as team:
        thread_id = await module.request_response(team)
        said = structured(await conversation(ledger, thread_id))
    assert [each.message_type for each in said] == [MessageType.QUERY, MessageType.RESPONSE]
    assert said[1].content
    assert (await module.judged(ledger, "request-response", thread_id)).state == "complete"

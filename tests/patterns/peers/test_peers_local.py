"""Peers on the real local model: what is looked at is protocol and ledger, never its words."""

import pytest
from tests.patterns.chains import run
from tests.patterns.peers.plays import talk_in

from antiphon.agents.models import model
from antiphon.agents.models._local import LocalModel
from antiphon.dialects.marsys import validate_message
from antiphon.errors import LocalModelError
from antiphon.messages import Conversation
from antiphon.patterns.peers import Peers, PeerSpec, pipeline


@pytest.mark.slow
def test_one_peer_asks_another_on_the_local_model() -> None:
    """MA-062: the documented example, with fewer words."""
    try:
        local = model("local")
    except LocalModelError as exc:
        pytest.skip(f"test_peers_local was not run: {exc}")
    assert isinstance(local, LocalModel)

    async def main() -> None:
        agents = [PeerSpec(name="writer"), PeerSpec(name="critic", instructions="Answer in a word.", max_tokens=6)]
        async with Peers(None, agents, topology=pipeline("writer", "critic"), model=local) as peers:
            answer = await peers.agent("writer").invoke_agent("critic", "Is tea healthy?", thread_id="t")
            memory = await peers.memory("critic", "t")
            talk = Conversation(await talk_in(peers.ledger, "t"))
        assert (answer.role, answer.name) == ("agent_response", "critic")
        assert validate_message(answer)
        assert [each["role"] for each in memory.to_llm_format()] == ["system", "user", "assistant"]
        assert memory.last(1)[0].usage is not None
        assert (talk.open_calls(), talk.orphans()) == ((), ())

    try:
        run(main())
    finally:
        local.server.stop()

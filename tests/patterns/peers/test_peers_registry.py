"""The registry: unique names, also from several threads; and topologies. MA-062."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from pydantic import ValidationError
from tests.patterns.peers.plays import Play, asks, calls, line, says, spec, talk_in

from antiphon.errors import SetupError
from antiphon.patterns.peers import (
    PeerRegistry,
    Peers,
    PeerSpec,
    hierarchy,
    mesh,
    pipeline,
    pipeline_flow,
    star,
    star_flow,
)
from antiphon.patterns.peers._registry import allows
from antiphon.protocol.flows import Flow, Step, repeat, sequence


def test_a_name_is_given_once() -> None:
    """MA-062: registered, found, listed in order; a second of the name is refused; gone when it is unregistered."""
    registry = PeerRegistry([spec("ada"), spec("bob")])
    with pytest.raises(SetupError, match="there is a peer 'ada' already"):
        registry.register(spec("ada"))
    assert registry.get("ada") is registry.find("ada")
    assert (registry.names, len(registry), "bob" in registry) == (("ada", "bob"), 2, True)
    assert registry.unregister("ada").name == "ada"
    assert (registry.all(), registry.find("ada")) == ((registry.get("bob"),), None)
    for missing in (registry.get, registry.unregister):
        with pytest.raises(SetupError, match="no peer 'ada'; there are 'bob'"):
            missing("ada")
    registry.register(spec("ada"))
    assert [each.name for each in registry] == ["bob", "ada"]


def test_names_are_made_of_a_prefix_and_a_number_and_not_used_again() -> None:
    """MA-062: `Prefix-N`, without the names that were registered by hand."""
    registry = PeerRegistry([spec("Finder-2")])
    made = [registry.register_new("Finder", instructions="Find.").name for _ in range(2)]
    registry.unregister("Finder-3")
    made.append(registry.register_new("Finder").name)
    assert made == ["Finder-1", "Finder-3", "Finder-4"]
    with pytest.raises(ValidationError):
        registry.register_new("no name")


def test_threads_that_register_at_once_get_different_names() -> None:
    """MA-062: thread-safe: one thread gets a given name, and each thread gets its own generated name."""
    registry = PeerRegistry()

    def take(number: int) -> bool:
        registry.register_new("Worker")
        try:
            registry.register(spec(f"peer{number % 10}"))
        except SetupError:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        taken = sum(pool.map(take, range(200)))
    assert taken == 10
    assert len(registry) == 210
    assert {f"Worker-{number}" for number in range(1, 201)} < set(registry.names)


def test_everybody_is_everybody_else() -> None:
    ada = PeerSpec(name="ada", allowed_peers="*")
    assert (allows(ada, "bob"), allows(ada, "ada"), allows(spec("ada", "ada"), "ada")) == (True, False, True)


# ---------------------------------------------------------------- topologies


def test_topologies_say_who_may_ask_whom() -> None:
    """MA-062: star, pipeline, mesh, hierarchy."""
    assert star("a", ["b", "c"]) == {"a": ("b", "c"), "b": (), "c": ()}
    assert pipeline("a", "b", "c") == {"a": ("b",), "b": ("c",), "c": ()}
    assert mesh("a", "b", "c") == {"a": ("b", "c"), "b": ("a", "c"), "c": ("a", "b")}
    tree = {"a": {"b": ["d", "e"], "c": []}}
    assert hierarchy(tree) == {"a": ("b", "c"), "b": ("d", "e"), "c": (), "d": (), "e": ()}
    assert (pipeline(), mesh("a"), star("a", [])) == ({}, {"a": ()}, {"a": ()})


@pytest.mark.parametrize(
    "make",
    [lambda: star("a", ["b", "b"]), lambda: pipeline("a", "b", "a"), lambda: mesh("a", "a"), lambda: hierarchy({"a": ["a"]})],
)
def test_no_peer_has_two_places_in_a_topology(make: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match="is in two places"):
        make()


@pytest.mark.slow
async def test_a_star_is_judged_by_its_flow() -> None:
    """MA-062: a real run is on the flow; a leaf that asks another is off it, and named."""
    parts = {"ada": line(asks(("bob", "1"), ("carl", "2")), asks(("bob", "3"))), "bob": line(asks(("carl", "4")))}
    specs = [spec("ada"), spec("bob"), spec("carl")]
    flow = star_flow("ada", ["bob", "carl"])
    verdicts = {}
    for name, topology in (("star", star("ada", ["bob", "carl"])), ("mesh", mesh("ada", "bob", "carl"))):
        play = Play(**parts, carl=lambda asked, given: says("so"))
        async with Peers(None, specs, topology=topology, model=play) as peers:
            await peers.run("Go", thread_id="t")
            await peers.run("Again", thread_id="t")
            verdicts[name] = flow.check(await talk_in(peers.ledger, "t", "control"))
    assert (verdicts["star"].state, verdicts["mesh"].state) == ("complete", "violated")
    assert verdicts["mesh"].message is not None
    assert (verdicts["mesh"].message.policy, verdicts["mesh"].message.to) == ("peer/bob", ("peer/carl",))


@pytest.mark.slow
async def test_a_pipeline_is_judged_by_its_flow() -> None:
    """MA-062: each peer asks the next one and answers after it; a run that skips one is off the flow."""
    specs = [spec("ada"), spec("bob"), spec("carl")]
    flow = pipeline_flow("ada", "bob", "carl")
    play = Play(ada=line(asks(("bob", "1"))), bob=line(asks(("carl", "2"))), carl=lambda asked, given: says("3"))
    async with Peers(None, specs, topology=pipeline("ada", "bob", "carl"), model=play) as peers:
        outcome = await peers.run("Go", thread_id="t")
        said = await talk_in(peers.ledger, "t", "control")
    assert outcome.response == "agent_response:agent_response:3"
    assert flow.check(said).state == "complete"
    assert flow.check(said[:-1]).state == "open"
    assert pipeline_flow("ada", "carl", "bob").check(said).state == "violated"


# ---------------------------------------------------------------- the pictures of the document

CONVERSATION = Flow(
    "conversation",
    "The system instructs an agent; a user and the agent take turns.",
    sequence(
        Step("system", "agent", "said"),
        Step("user", "agent", "said"),
        Step("agent", "user", "said"),
        repeat(Step("user", "agent", "said"), Step("agent", "user", "said")),
    ),
    (("system", "system"), ("user", "user"), ("agent", "ada")),
)
TOOL_USE = Flow(
    "tool use",
    "A user asks; the agent says something and calls a tool, hears what it gives, and answers.",
    sequence(
        Step("system", "agent", "said"),
        Step("user", "agent", "said"),
        Step("agent", "tool", "called"),
        Step("tool", "agent", "answered"),
        Step("agent", "user", "said"),
    ),
    (("system", "system"), ("user", "user"), ("agent", "ada"), ("tool", "weather")),
)
COMMUNICATION = Flow(
    "communication",
    "One agent asks another, by its name, and has its answer.",
    repeat(Step("caller", "callee", "called"), Step("callee", "caller", "answered"), least=1),
    (("caller", "ada"), ("callee", "bob")),
)


def weather(city: str) -> dict[str, object]:
    """Say what the weather is."""
    return {"temp": 18, "city": city}


@pytest.mark.slow
async def test_the_flows_of_the_document_judge_what_peers_remember() -> None:
    """MA-043, MA-044, MA-062: conversation, tool use, and one agent that asks another; wrong for each other's runs."""
    plays = {
        CONVERSATION: Play(ada=lambda asked, given: says("4")),
        TOOL_USE: Play(ada=line(calls(("weather", {"city": "Paris"})))),
        COMMUNICATION: Play(ada=line(asks(("bob", "Find X"))), bob=lambda asked, given: says("X")),
    }
    found = {}
    for flow, play in plays.items():
        specs = [spec("ada", tools=("weather",)), spec("bob")]
        async with Peers(None, specs, topology=star("ada", ["bob"]), model=play, tools=[weather]) as peers:
            await peers.run("2+2?", thread_id="t")
            if flow is CONVERSATION:
                await peers.run("3+1?", thread_id="t")
            memory = list(await peers.memory("ada", "t"))
        said = [each for each in memory if flow is not COMMUNICATION or each.kind != "parts"]
        found[flow.name] = flow.check(said).state
        others = {TOOL_USE, COMMUNICATION} - {flow}  # each of them is also a conversation, if only the talk is read
        assert all(other.check(memory).state != "complete" for other in others)
    assert found == {"conversation": "complete", "tool use": "complete", "communication": "complete"}

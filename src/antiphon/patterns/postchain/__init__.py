"""PostChain: a thread goes through six phases, each an actor with an agent; supervised, durable, and open to look into."""

from antiphon.errors import ChainConfigError
from antiphon.patterns.postchain._agents import AgentManagerActor, SupervisorActor
from antiphon.patterns.postchain._cast import GO_ON_WITH
from antiphon.patterns.postchain._config import ChainConfig, prepared_agent
from antiphon.patterns.postchain._context import (
    Add,
    ChainContext,
    ContextOperation,
    Item,
    Link,
    Prioritize,
    Prune,
    Tag,
    Transform,
)
from antiphon.patterns.postchain._events import ChainEvent, event_of
from antiphon.patterns.postchain._gateway import ClientActor
from antiphon.patterns.postchain._lifecycle import LIFE, ThreadLife
from antiphon.patterns.postchain._pausing import Waiting, waiting_for
from antiphon.patterns.postchain._phases import (
    ActionPhaseActor,
    ExperiencePhaseActor,
    IntentionPhaseActor,
    ObservationPhaseActor,
    UnderstandingPhaseActor,
    YieldPhaseActor,
)
from antiphon.patterns.postchain._postchain import ChainResult, PostChain, ask_owner
from antiphon.patterns.postchain._protocol import RunThread, SubscribeThread, ThreadSubscribed
from antiphon.patterns.postchain._rerun import Divergence, rerun
from antiphon.patterns.postchain._retrieval import Observation, Observations
from antiphon.patterns.postchain._thread import ThreadActor

__all__ = [
    "GO_ON_WITH",
    "LIFE",
    "ActionPhaseActor",
    "Add",
    "AgentManagerActor",
    "ChainConfig",
    "ChainConfigError",
    "ChainContext",
    "ChainEvent",
    "ChainResult",
    "ClientActor",
    "ContextOperation",
    "Divergence",
    "ExperiencePhaseActor",
    "IntentionPhaseActor",
    "Item",
    "Link",
    "Observation",
    "ObservationPhaseActor",
    "Observations",
    "PostChain",
    "Prioritize",
    "Prune",
    "RunThread",
    "SubscribeThread",
    "SupervisorActor",
    "Tag",
    "ThreadActor",
    "ThreadLife",
    "ThreadSubscribed",
    "Transform",
    "UnderstandingPhaseActor",
    "Waiting",
    "YieldPhaseActor",
    "ask_owner",
    "event_of",
    "prepared_agent",
    "rerun",
    "waiting_for",
]

"""PostChain: a thread goes through six phases, each an actor with an agent; supervised, durable, and open to look into."""

from antiphon.patterns.postchain._action import ActionPhaseActor
from antiphon.patterns.postchain._agent import AgentManagerActor
from antiphon.patterns.postchain._chain import ChainResult, PostChain, ask_owner
from antiphon.patterns.postchain._client import ClientActor
from antiphon.patterns.postchain._config import ChainConfig, ChainConfigError, prepared_agent
from antiphon.patterns.postchain._events import ChainEvent, event_of
from antiphon.patterns.postchain._experience import ExperiencePhaseActor
from antiphon.patterns.postchain._intention import IntentionPhaseActor
from antiphon.patterns.postchain._life import LIFE, ThreadLife
from antiphon.patterns.postchain._observation import ObservationPhaseActor
from antiphon.patterns.postchain._observations import Observation, Observations
from antiphon.patterns.postchain._operations import (
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
from antiphon.patterns.postchain._recursion import GO_ON_WITH
from antiphon.patterns.postchain._rerun import Divergence, rerun
from antiphon.patterns.postchain._subscription import SubscribeThread, ThreadSubscribed
from antiphon.patterns.postchain._supervisor import SupervisorActor
from antiphon.patterns.postchain._thread import RunThread, ThreadActor
from antiphon.patterns.postchain._understanding import UnderstandingPhaseActor
from antiphon.patterns.postchain._waiting import Waiting, waiting_for
from antiphon.patterns.postchain._yield import YieldPhaseActor

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

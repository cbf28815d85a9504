"""What a phase of PostChain answers with, for models to be held to."""

from typing import Literal

from pydantic import BaseModel, Field

PHASES = ("action", "experience", "intention", "observation", "understanding", "yield")


class Phase(BaseModel):
    """The fields of PHASE_PROCESSED and AGENT_INVOKED, small enough for a small model."""

    response: str = Field(max_length=40)
    confidence: float = Field(ge=0, le=1)
    next_phase: Literal["action", "experience", "intention", "observation", "understanding", "yield"]
    tool_calls: list[str] = Field(max_length=1)

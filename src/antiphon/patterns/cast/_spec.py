"""AgentSpec: how an agent is set up, in Python or in a file."""

from __future__ import annotations

from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_ai.settings import ModelSettings

from antiphon.errors import CastError

__all__ = ["AgentSpec", "CastError"]


class AgentSpec(BaseModel):
    """How one agent is set up."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(pattern=r"^[A-Za-z][A-Za-z0-9_.-]{0,63}$")
    """What others call it, and what stands in the ledger."""
    instructions: str = ""
    model: str | None = None
    """As `antiphon.agents.model` takes it; None: the model of the whole cast."""
    fallback: str | None = None
    """The model to ask when the first one cannot be used."""
    temperature: float | None = Field(default=None, ge=0)
    max_tokens: int | None = Field(default=None, ge=1)
    """Of one answer."""
    tools: tuple[str, ...] = ()
    """What it may use, by name: of the toolkit, or built in."""

    @property
    def models(self) -> tuple[str | None, ...]:
        """The models to ask, one after the other."""
        return (self.model,) if self.fallback is None else (self.model, self.fallback)

    @property
    def settings(self) -> ModelSettings:
        """What its models are asked with."""
        settings = ModelSettings()
        if self.temperature is not None:
            settings["temperature"] = self.temperature
        if self.max_tokens is not None:
            settings["max_tokens"] = self.max_tokens
        return settings

    @model_validator(mode="after")
    def _check_fallback(self) -> Self:
        if self.fallback is not None and self.fallback == self.model:
            raise ValueError("the fallback is another model than the first")
        return self

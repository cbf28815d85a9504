"""Durable execution of Pydantic AI agents: their operations are effects in a thread.

Programs use `antiphon.agents`. `_talk`, `_failures` and `_model_request` are also for our own code that makes effects in a
run, such as the toolkit and the patterns.
"""

__all__: list[str] = []

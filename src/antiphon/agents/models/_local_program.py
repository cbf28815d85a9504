"""The server of the local model: a separate program that ends with its parent process.

It is run by its path and imports nothing from antiphon, so that it starts quickly. It reads its parameters as a line of JSON
from its input (every user of the machine could read a key on a command line), and prints its address as a line.
"""

import json
import os
import select
import threading
from importlib import import_module
from typing import Any

_xllamacpp: Any = import_module("xllamacpp")  # it has no types
_LOOK_AGAIN = 1.0
"""Seconds between checks of the parent: its end of the pipe may stay open in a process that it forked."""


def _leave_with(parent: int) -> None:
    """End the process when its input is closed, or its parent has changed."""
    while os.getppid() == parent:
        readable, _, _ = select.select([0], [], [], _LOOK_AGAIN)
        if readable and not os.read(0, 1):
            break
    os._exit(0)  # an orderly shutdown takes a second, and there is nothing to clean up


def _line() -> bytes:
    """Read one line and not a byte more: the rest of the input is watched without a buffer."""
    text = b""
    while not text.endswith(b"\n"):
        byte = os.read(0, 1)
        if not byte:
            os._exit(0)
        text += byte
    return text


def _parameters(request: dict[str, Any]) -> Any:
    parameters = _xllamacpp.CommonParams()
    parameters.model.path = request["weights"]
    parameters.model_alias = {request["name"]}
    parameters.hostname = "127.0.0.1"
    parameters.port = 0  # any that is free
    parameters.api_keys = [request["key"]]
    parameters.webui = parameters.endpoint_slots = False
    parameters.n_parallel = request["slots"]
    parameters.n_ctx = request["slots"] * request["context"]
    parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = request["threads"]
    parameters.sampling.temp = 0  # deterministic answers
    if request["template"] is not None:
        parameters.chat_template = request["template"]  # the model's own knows no tools
    parameters.use_jinja = True
    parameters.warmup = False
    return parameters


def main() -> None:
    """Serve until the input ends."""
    parent = os.getppid()
    request = json.loads(_line())
    watch = threading.Thread(target=_leave_with, args=(parent,))
    watch.start()  # before the model is read, which takes half a second
    server = _xllamacpp.Server(_parameters(request))
    print(server.listening_address, flush=True)  # noqa: T201
    watch.join()


if __name__ == "__main__":
    main()

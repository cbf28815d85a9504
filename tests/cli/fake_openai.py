"""A server that answers as OpenAI's Chat Completions do, counts what it answers, and can fail as real ones do.

What it answers is in the instructions: each line `CALL name {arguments}` is a tool call that it makes, one a request; then it
answers with text, or with the output tool that is asked for, filled by its schema. So the same request gets the same answer.
"""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

QUICK = Path(__file__).with_name("quick.toml")
ANSWER = "Green tea is steeped at 80 degrees."
WRONG = {
    "wrong": (b"<html>hello</html>", "text/html"),
    "ollama": (b'{"model": "m", "message": {"role": "assistant", "content": "Hi"}, "done": true}\n', "application/x-ndjson"),
    "claude": (
        b'event: content_block_delta\ndata: {"type": "content_block_delta", "delta": {"text": "Hi"}}\n\n',
        "text/event-stream",
    ),
}
"""Answers in another protocol, by name."""


@dataclass
class Asked:
    """A request."""

    digest: str
    """Of its messages: the same request again is the same work, paid for twice."""
    began: float
    is_answered: bool = False


@dataclass
class FakeOpenAI:
    """What the server has seen, and how it fails."""

    asked: list[Asked] = field(default_factory=list)
    failure: str | None = None
    """A status code; `cut`: the stream ends in the middle; `hang`: it does not answer; one of `WRONG`: another protocol. None:
    it answers."""
    fails_after: int = 0
    """How many requests are answered before it fails."""
    fails_for: int | None = None
    """How many requests fail before it answers again; None: all."""
    is_closed: threading.Event = field(default_factory=threading.Event)
    pause: float = 0.0
    """Seconds between the pieces of an answer."""
    url: str = ""

    @property
    def answered(self) -> list[str]:
        """The requests that were answered whole, in order."""
        return [each.digest for each in self.asked if each.is_answered]

    def environment(self) -> dict[str, str]:
        """Return what a command needs to ask it. The waits between attempts are tested elsewhere, in virtual time."""
        named = {"ANTIPHON_MODEL": "", "ANTIPHON_CONFIG": str(QUICK)}
        return {"OPENAI_BASE_URL": f"{self.url}/v1", "OPENAI_API_KEY": "sk-fake", **named}


class _Handler(BaseHTTPRequestHandler):
    server: "_Server"
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        fake = self.server.fake
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        digest = sha256(json.dumps([body["messages"], body.get("tools")], sort_keys=True).encode()).hexdigest()[:16]
        asked = Asked(digest, time.monotonic())
        fails = fake.failure if len(fake.answered) >= fake.fails_after and fake.fails_for != 0 else None
        if fails is not None and fake.fails_for is not None:
            fake.fails_for -= 1
        fake.asked.append(asked)
        try:
            if fails is not None and fails.isdigit():
                self._send(int(fails), b'{"error": {"message": "the provider is down"}}')
            elif fails == "hang":
                fake.is_closed.wait()
                self.close_connection = True
            elif fails in WRONG:
                self._send(200, *WRONG[fails])
            elif body.get("stream"):
                self._stream(_message(body), fake.pause, is_cut=fails == "cut")
                asked.is_answered = fails is None
            elif fails == "cut":
                self.close_connection = True
            else:
                time.sleep(fake.pause * 4)
                self._send(200, json.dumps(_completion(_message(body))).encode())
                asked.is_answered = True
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True  # the process was killed while it was answered

    def _send(self, status: int, body: bytes, kind: str = "application/json") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Retry-After-Ms", "1")  # the SDK's own retries wait as long as they are told
        self.end_headers()
        self.wfile.write(body)

    def _stream(self, message: dict[str, Any], pause: float, *, is_cut: bool) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        pieces = list(_chunks(message))
        for number, chunk in enumerate(pieces):
            if is_cut and number == len(pieces) // 2:
                self.close_connection = True
                self.connection.close()
                return
            self._chunk(f"data: {json.dumps(chunk)}\n\n".encode())
            time.sleep(pause)
        self._chunk(b"data: [DONE]\n\n")
        self.wfile.write(b"0\r\n\r\n")

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: the test has the record."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, fake: FakeOpenAI) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.fake = fake

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: clients are killed."""


@contextmanager
def fake_openai() -> Iterator[FakeOpenAI]:
    """Serve on a free port of this machine until the block is left."""
    fake = FakeOpenAI()
    with _Server(fake) as server:
        fake.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        try:
            yield fake
        finally:
            fake.is_closed.set()
            server.shutdown()
            thread.join()


# ---------------------------------------------------------------- what it answers


def _message(body: dict[str, Any]) -> dict[str, Any]:
    """Return the answer to a request: the next call of its instructions, its output tool, or text."""
    messages = body["messages"]
    told = "\n".join(str(each.get("content")) for each in messages if each["role"] in ("system", "developer"))
    wanted = [line.removeprefix("CALL ").split(" ", 1) for line in told.splitlines() if line.startswith("CALL ")]
    tools = {each["function"]["name"]: each["function"] for each in body.get("tools") or ()}
    made = [call["function"]["name"] for each in messages for call in each.get("tool_calls") or ()]
    for name, arguments in wanted:
        if name in tools and name not in made:
            return _call(name, json.loads(arguments), len(messages))
    for name, tool in tools.items():
        if name.startswith("final_result"):
            schema = tool["parameters"]
            return _call(name, _sample(schema, schema.get("$defs") or {}), len(messages))
    return {"role": "assistant", "content": ANSWER}


def _call(name: str, arguments: Any, number: int) -> dict[str, Any]:
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": f"call-{number}", "type": "function", "function": function}],
    }


def _sample(schema: dict[str, Any], named: dict[str, Any]) -> Any:
    """Return a value that a schema accepts."""
    if "$ref" in schema:
        return _sample(named[schema["$ref"].rpartition("/")[2]], named)
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return schema["enum"][0]
    for choice in schema.get("anyOf") or schema.get("oneOf") or ():
        return _sample(choice, named)
    match schema.get("type"):
        case "object":
            return {name: _sample(schema["properties"][name], named) for name in schema.get("required") or ()}
        case "array":
            return [_sample(schema.get("items") or {}, named)]
        case "integer" | "number":
            return 1
        case "boolean":
            return False
        case _:
            return ANSWER


def _completion(message: dict[str, Any]) -> dict[str, Any]:
    reason = "tool_calls" if "tool_calls" in message else "stop"
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "fake",
        "choices": [{"index": 0, "message": message, "finish_reason": reason}],
        "usage": {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15},
    }


def _chunks(message: dict[str, Any]) -> Iterator[dict[str, Any]]:
    whole = _completion(message)
    form = {**whole, "object": "chat.completion.chunk"}
    deltas: list[dict[str, Any]] = [{"role": "assistant"}]
    deltas += [{"content": f"{word} "} for word in (message["content"] or "").split()]
    for number, call in enumerate(message.get("tool_calls") or ()):
        deltas.append({"tool_calls": [{"index": number, **call}]})
    for delta in deltas:
        yield {**form, "usage": None, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
    yield {
        **form,
        "usage": None,
        "choices": [{"index": 0, "delta": {}, "finish_reason": whole["choices"][0]["finish_reason"]}],
    }
    yield {**form, "choices": []}

"""A local HTTP server that stands for a provider: it writes down what an SDK sends, and answers from a queue."""

import json
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

from tests.providers.clients import ask
from tests.providers.samples import samples

__all__ = ["Exchange", "Provider", "Recorded", "event_stream", "send", "serving"]


class Recorded(NamedTuple):
    """A request as it came."""

    path: str
    body: Any


class Exchange(NamedTuple):
    """What the server recorded, and what the SDK received, both as plain JSON."""

    sent: Recorded
    received: Any


class Provider(ThreadingHTTPServer):
    """Answers each request with the next of `answers`: content type and bytes."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.requests: list[Recorded] = []
        self.answers: deque[tuple[str, bytes]] = deque()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def answer(self, dialect: str, body: Any) -> None:
        """Queue an answer: a list is sent as the events of a stream, anything else as JSON."""
        if isinstance(body, list):
            self.answers.append(("text/event-stream", event_stream(dialect, body)))
        else:
            self.answers.append(("application/json", json.dumps(body).encode()))


class _Handler(BaseHTTPRequestHandler):
    server: Provider

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.requests.append(Recorded(self.path, json.loads(body)))
        if self.server.answers:
            self._reply(200, *self.server.answers.popleft())
        else:
            self._reply(500, "application/json", b'{"error": {"message": "no answer was prepared for this request"}}')

    def _reply(self, status: int, content_type: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: the test has the record."""


@contextmanager
def serving() -> Iterator[Provider]:
    """Serve on a free port of this machine until the block is left."""
    with Provider() as provider:
        thread = threading.Thread(target=provider.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield provider
        finally:
            provider.shutdown()
            thread.join()


def send(dialect: str, body: Any, answer: Any = None) -> Exchange:
    """Send a request body with the real SDK to a server that gives `answer`, or else the sample of a response.

    A list is the events of a stream.
    """
    if answer is None:
        answer = samples(dialect, "response")[0].body
    with serving() as provider:
        provider.answer(dialect, answer)
        received = ask(dialect, body, provider.url, stream=isinstance(answer, list))
        (sent,) = provider.requests
        return Exchange(sent, received)


def event_stream(dialect: str, events: list[Any]) -> bytes:
    """Return the bytes of a stream as this provider frames them (server-sent events)."""
    named = dialect in {"openai-responses", "anthropic-messages"}
    frames = [_frame(json.dumps(event), event["type"] if named else None) for event in events]
    if dialect == "openai-chat":
        frames.append(_frame("[DONE]"))
    return b"".join(frames)


def _frame(data: str, name: str | None = None) -> bytes:
    line = f"event: {name}\n" if name else ""
    return f"{line}data: {data}\n\n".encode()

"""Chat app: FastAPI, streamed answers, kept conversations. Kill it in the middle of an answer, and start it again.

python examples/durable/chat_app.py [ledger.db]

Then open http://127.0.0.1:8000, or use curl, as `docs/chat-app.md` does. A message has an id that the client chooses. The
same id again is the same question: it continues an interrupted answer, or gets the recorded one. `CHAT_MODEL` names a model
of Pydantic AI, such as `openai:gpt-5.2`; without it, a script answers.
"""

import asyncio
import os
import sys
from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from socket import socket
from typing import Any

import uvicorn
from fastapi import FastAPI
from fastapi.responses import FileResponse, StreamingResponse
from httpx2 import AsyncClient
from outside import Outside, call, scripted
from pydantic import BaseModel
from pydantic_ai import Agent, AgentRunResultEvent
from pydantic_ai.conversation import Conversation
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    PartDeltaEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.usage import RunUsage, UsageLimits

from antiphon import open_ledger
from antiphon.agents import LedgerConversationStore, LedgerDurability
from antiphon.durable import durable_stream, runs
from antiphon.ledger import Ledger

INSTRUCTIONS = "You sell tea. Order what the customer wants."
REQUESTS = 20
"""Model requests for one answer, at most."""


class Question(BaseModel):
    """A message of the customer."""

    id: str
    text: str


def reply(messages: list[ModelMessage]) -> Sequence[str | ToolCallPart]:
    """Answer in the place of a model: order a tea that is asked for, and count what was ordered before."""
    parts = [part for message in messages if isinstance(message, ModelRequest) for part in message.parts]
    last, orders = parts[-1], [part for part in parts if isinstance(part, ToolReturnPart)]
    if isinstance(last, ToolReturnPart):
        return [f"Done: {last.content}. Would you like anything else?"]
    _, _, tea = str(getattr(last, "content", "")).rstrip(".").partition("Order ")
    if tea:
        return [call("order", f"order-{len(orders) + 1}", tea=tea)]
    return [f"You have ordered {len(orders)} of our teas so far. Say “Order green tea.” for one more."]


class Chats:
    """The conversations of the shop, each in the thread of its name."""

    def __init__(self, ledger: Ledger, shop: Outside, instructions: str, *, pause: float = 0.0, **options: Any) -> None:
        self._ledger = ledger
        self._store = LedgerConversationStore(ledger)
        self._options = options
        self._turns: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        durability = LedgerDurability[object](ledger, reconcile=shop.reconcile)
        model = os.environ.get("CHAT_MODEL") or scripted(reply, pause=pause)
        self._agent = Agent(model, name="seller", instructions=instructions, capabilities=[durability])

        @self._agent.tool_plain
        async def order(tea: str) -> str:
            """Order a tea. It is delivered and paid for, so it must not be ordered twice."""
            return shop.do(f"order {tea}", f"{tea} is on its way")

    async def conversation(self, chat: str) -> Conversation:
        return await self._store.load(chat) or Conversation(conversation_id=chat)

    async def unanswered(self, chat: str) -> list[Question]:
        """Return the questions whose answers were interrupted. Their text is recorded as the input of their run."""
        return [Question.model_validate(run.input) for run in await runs(self._ledger, chat) if run.is_left]

    async def answer(self, chat: str, question: Question) -> AsyncIterator[str]:
        """Give the answer word by word; what is recorded of it, at once.

        The questions of a chat are answered one after the other, because each answer is part of the next prompt. One that a
        crash has interrupted comes first.
        """
        async with self._turns[chat]:
            for earlier in await self.unanswered(chat):
                if earlier != question:
                    async for _ in self._answer(chat, earlier):
                        pass
            async with aclosing(self._answer(chat, question)) as words:
                async for word in words:
                    yield word

    def _answer(self, chat: str, question: Question) -> Any:
        async def words() -> AsyncIterator[str]:
            conversation = await self.conversation(chat)
            # The usage of a conversation is of all its turns, and the default limit is 50 requests: so the limit is per turn.
            limits = UsageLimits(request_limit=conversation.usage.requests + REQUESTS)
            turn = self._agent.run_stream_events(question.text, conversation=conversation, usage_limits=limits)
            async with turn as events:
                async for event in events:
                    match event:
                        case (
                            PartStartEvent(part=TextPart(content=word))
                            | PartDeltaEvent(delta=TextPartDelta(content_delta=word))
                        ):
                            yield word
                        case AgentRunResultEvent(result=result):
                            await self._store.save(result)  # before the run ends: a run that has ended is not run again
                        case _:
                            pass

        return durable_stream(chat, words, id=question.id, ledger=self._ledger, input=question.model_dump(), **self._options)


def make_app(chats: Chats) -> FastAPI:
    app = FastAPI()

    @app.get("/")
    async def page() -> FileResponse:
        return FileResponse(Path(__file__).with_suffix(".html"))

    @app.post("/chats/{chat}")
    async def ask(chat: str, question: Question) -> StreamingResponse:
        return StreamingResponse(chats.answer(chat, question), media_type="text/plain")

    @app.get("/chats/{chat}")
    async def read(chat: str) -> dict[str, Any]:
        conversation = await chats.conversation(chat)
        said = [said for message in conversation.messages for said in texts(message)]
        return {"said": said, "unanswered": await chats.unanswered(chat), "requests": conversation.usage.requests}

    return app


def texts(message: ModelMessage) -> list[dict[str, str]]:
    who = "you" if isinstance(message, ModelRequest) else "shop"
    said = [part.content for part in message.parts if isinstance(part, UserPromptPart | TextPart)]
    return [{"who": who, "text": text} for text in said if isinstance(text, str)]


@asynccontextmanager
async def serving(app: FastAPI) -> AsyncGenerator[str]:
    """Serve the app on a free port, for an `async with` block; yields its URL."""
    with socket() as listener:
        listener.bind(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(app, log_level="error"))
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        listener.listen()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            await serving


async def main(ledger: Ledger, outside: Outside, instructions: str = INSTRUCTIONS, **options: Any) -> tuple[object, RunUsage]:
    """Have a conversation over HTTP, as a client whose connection is bad: it sends its order twice."""
    chats = Chats(ledger, outside, instructions, **options)
    questions = [("m1", "Order green tea."), ("m1", "Order green tea."), ("m2", "What have I ordered?")]
    async with serving(make_app(chats)) as url, AsyncClient(base_url=url) as client:
        answers = [(await client.post("/chats/tea", json={"id": key, "text": text})).text for key, text in questions]
        said = (await client.get("/chats/tea")).json()["said"]
    return {"answers": answers, "said": said}, (await chats.conversation("tea")).usage


async def serve(path: str) -> None:
    async with open_ledger(f"sqlite:///{path}") as ledger:
        chats = Chats(ledger, Outside(Path(f"{path}.outside")), INSTRUCTIONS, pause=0.3)
        await uvicorn.Server(uvicorn.Config(make_app(chats), port=8000, log_level="info")).serve()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1] if len(sys.argv) > 1 else "chat.db"))

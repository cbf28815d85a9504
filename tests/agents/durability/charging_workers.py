"""A web service that charges customers: uvicorn workers that share one port and one ledger. A worker that dies is replaced.

Arguments: the folder of the ledger and of the witness, and how many workers. It prints its port, and the process id of each
worker that it starts. It ends with its standard input.

Workers are forked after everything is imported, as gunicorn does with `--preload`: a new one serves within milliseconds.
"""

import asyncio
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from threading import Lock, Thread

import uvicorn
from pydantic_ai import Agent, UnexpectedModelBehavior
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from antiphon.agents import LedgerDurability
from antiphon.durable import current_effect, ledger_run
from antiphon.errors import ParkedError
from antiphon.ledger import Ledger
from antiphon.ledger.memory import MemoryLedger
from antiphon.ledger.sqlite._ledger import SqliteLedger


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


async def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """Charge, then say what the bank has said: as a model would, but always the same."""
    await asyncio.sleep(0.005)
    last = messages[-1].parts[-1]
    if isinstance(last, ToolReturnPart):
        return ModelResponse([TextPart(f"The bank says: {last.content}")])
    amount = int(str(last.content).rpartition(" ")[2])
    return ModelResponse([ToolCallPart("charge", {"amount": amount}, tool_call_id="call-1")])


def make_app(folder: Path) -> Starlette:
    ledgers: list[Ledger] = []
    agents: list[Agent[None, str]] = []

    async def charge(amount: int) -> str:
        """Charge the customer. It is started once, whatever happens."""
        effect = current_effect()
        assert effect is not None
        witness(f"start {effect.key}")
        await asyncio.sleep(0.02)
        witness(f"done {effect.key}")
        return f"{amount} charged by {os.getpid()}"

    def witness(line: str) -> None:
        with (folder / "witness").open("a") as file:  # one write of a short line, which the system does not split
            file.write(f"{line} {os.getpid()}\n")

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with SqliteLedger.open(folder / "ledger.db") as ledger:
            durability = LedgerDurability[None](ledger)
            ledgers.append(ledger)
            agents.append(Agent(FunctionModel(answer), name="cashier", tools=[charge], capabilities=[durability]))
            yield

    async def handle(request: Request) -> JSONResponse:
        said = await request.json()
        witness(f"handle order-{said['id']}/{said['id']}")
        try:
            async with ledger_run(f"order-{said['id']}", id=said["id"], ledger=ledgers[0], name="shop"):
                result = await agents[0].run(f"Charge {said['amount']}")
        except ParkedError as exc:
            return JSONResponse({"parked": str(exc)}, 409)
        return JSONResponse({"answer": result.output})

    return Starlette(routes=[Route("/charge", handle, methods=["POST"])], lifespan=lifespan)


def work(app: Starlette, listener: socket.socket) -> int:
    """Serve in a new process, and return its id."""
    pid = os.fork()
    if pid == 0:
        signal.set_wakeup_fd(-1)
        server = uvicorn.Server(uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=1))
        try:
            asyncio.run(server.serve(sockets=[listener]))
        finally:
            os._exit(0)
    say(f"worker {pid}")
    return pid


def warm_up() -> None:
    """Have everything imported that a request needs, before the first fork."""
    uvicorn.Config(make_app(Path()), log_level="error").load()

    async def once() -> None:
        async with MemoryLedger.open() as ledger:
            agent = Agent(FunctionModel(answer), name="cashier", tools=[look], capabilities=[LedgerDurability[None](ledger)])
            async with ledger_run("warm-up", ledger=ledger):
                with suppress(UnexpectedModelBehavior):
                    await agent.run("Charge 1")

    asyncio.run(once())


async def look() -> str:
    """Look."""
    return "seen"


def main(folder: Path, count: int) -> None:
    warm_up()
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    listener.set_inheritable(True)
    app = make_app(folder)
    say(f"port {listener.getsockname()[1]}")
    workers, changing = {work(app, listener) for _ in range(count)}, Lock()

    def stop() -> None:
        sys.stdin.read()
        with changing:  # no worker begins after the others are killed
            for pid in workers:
                with suppress(ProcessLookupError):  # it has ended by itself
                    os.kill(pid, signal.SIGKILL)
            os._exit(0)

    Thread(target=stop, daemon=True).start()
    while True:
        pid, _ = os.wait()
        with changing:
            workers.discard(pid)
            workers.add(work(app, listener))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))

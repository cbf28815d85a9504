"""The actors of a thread with six phases, as small as they can be, to run the flows of the protocol."""

from antiphon.errors import RefusedError
from antiphon.messages import current_port
from antiphon.protocol import (
    PHASES,
    AgentResponse,
    AgentResult,
    ContextPrepared,
    CreateThread,
    ErrorNotification,
    Notice,
    Phase,
    PhaseOutput,
    PhaseProcessed,
    PrepareContext,
    PreparedContext,
    ProcessPhase,
    ProcessWithAgent,
    Retry,
    StartThread,
    ThreadCreated,
    ThreadResult,
    ThreadStarted,
)
from antiphon.runtime import Actor, Context, Supervision, System, handles

CLIENT = "client/1"
SUPERVISOR = "supervisor/agents"


class Run(Notice, frozen=True, type="TEST_RUN_THREAD"):
    thread_id: str


class Client(Actor):
    """Gets the result of the thread."""

    @handles
    async def told(self, result: ThreadResult, context: Context) -> None:
        pass


class Thread(Actor):
    @handles
    async def create(self, request: CreateThread, context: Context) -> ThreadCreated:
        assert context.thread_id is not None
        return ThreadCreated(thread_id=context.thread_id)

    @handles
    async def start(self, request: StartThread, context: Context) -> ThreadStarted:
        await context.tell(context.address, Run(thread_id=request.thread_id))
        return ThreadStarted(thread_id=request.thread_id, started_at=current_port().now())

    @handles
    async def run(self, notice: Run, context: Context) -> None:
        outputs: dict[str, str] = {}
        said = "hello"
        for phase in PHASES:
            request = ProcessPhase(thread_id=notice.thread_id, phase_type=phase, input=said)
            processed = await context.ask(f"{phase}/1", request, within=600)
            said = outputs[phase] = processed.output.response
        result = ThreadResult(thread_id=notice.thread_id, status="completed", outputs=outputs, response=said)
        await context.tell(CLIENT, result)


class PhaseActor(Actor):
    """Any of the six; its kind is its phase."""

    @handles
    async def process(self, request: ProcessPhase, context: Context) -> PhaseProcessed:
        prepare = PrepareContext(
            thread_id=request.thread_id,
            phase_type=request.phase_type,
            previous_phase_output=None,
            conversation_history=(),
        )
        await context.ask(context.address, prepare)
        answered = await self._ask_agent(ProcessWithAgent(input=f"{request.input}+{request.phase_type[0]}"), context)
        output = PhaseOutput(response=answered.result.response)
        return PhaseProcessed(thread_id=request.thread_id, phase_type=request.phase_type, output=output, processing_time=0)

    @handles
    async def prepare(self, request: PrepareContext, context: Context) -> ContextPrepared:
        phase: Phase = request.phase_type
        return ContextPrepared(thread_id=request.thread_id, phase_type=phase, context=PreparedContext(messages=()))

    async def _ask_agent(self, request: ProcessWithAgent, context: Context) -> AgentResponse:
        agent = f"agent/{context.address.partition('/')[0]}"
        try:
            return await context.ask(agent, request, within=300)
        except RefusedError as exc:
            failed_id = exc.message_id or ""
            failed = ErrorNotification(actor_id=agent, error_message=exc.reason, error_code=exc.code, details=None)
            await context.ask(SUPERVISOR, failed, within=300)
            retry = Retry(original_message_id=failed_id, attempt=2, max_attempts=3)
            answered = await context.ask(agent, retry, within=300)
            return AgentResponse.from_data(answered.to_data())


class AgentManager(Actor):
    """Runs a scripted model; those whose address is in `failing` fail until they are told to retry."""

    failing: frozenset[str] = frozenset()
    models: list[str] = []  # noqa: RUF012 (what was run, by its key)
    bills: list[str] = []  # noqa: RUF012

    @handles
    async def process(self, request: ProcessWithAgent, context: Context) -> AgentResponse:
        async def model(key: str) -> str:
            self.models.append(key)
            return request.input

        async def bill(key: str) -> bool:
            self.bills.append(key)
            return True

        if context.address in self.failing and context.message.kind == "option_call" and not _is_retry(context):
            raise RefusedError("API rate limit exceeded", "AGENT_ERROR", retryable=True)
        response = await context.effect("model", {"input": request.input}, model, effects="none")
        await context.effect("bill", {}, bill, effects="idempotent")
        return AgentResponse(result=AgentResult(response=response), processing_time=0)


def _is_retry(context: Context) -> bool:
    return getattr(context.message.payload, "option_name", "") == "RETRY"


def host(system: System) -> None:
    """Begin them all."""
    system.supervise(SUPERVISOR, Supervision(intensity=1000))
    system.spawn(CLIENT, Client)
    system.register("thread", Thread)
    system.register("agent", AgentManager, supervisor=SUPERVISOR)
    for phase in PHASES:
        system.register(phase, PhaseActor)


RESPONSE = "hello+a+e+i+o+u+y"

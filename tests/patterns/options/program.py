"""A program to be killed: a librarian who searches side by side, pays once, races two shelves, has a helper and an agent."""

import asyncio
from typing import Any

from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from tests.patterns.killed import Witness, serve

from antiphon.ledger import Ledger
from antiphon.messages import Conversation, OptionResultPayload
from antiphon.patterns.cast import AgentSpec
from antiphon.patterns.options import Choices, Executor, FirstSuccess, Groups, Options, under


def options_on(witness: Witness) -> Options:
    options = Options()

    @options.option(effects="none")
    async def search(query: str) -> str:
        """Search for something."""
        await witness.start(f"search {query}")
        return f"found {query}"

    @options.option(effects="once")
    async def pay(amount: int) -> str:
        """Pay."""
        await witness.start(f"pay {amount}")
        return f"paid {amount}"

    @options.option(effects="idempotent")
    async def reserve(book: str) -> str:
        """Reserve a book."""
        await witness.start(f"reserve {book}")
        return f"reserved {book}"

    @options.option(effects="none")
    async def far_shelf() -> str:
        """Look on a shelf that nobody comes back from."""
        await witness.start("far")
        await asyncio.Event().wait()
        return "never"

    @options.option(effects="none")
    async def weigh(thing: str) -> int:
        """Weigh something."""
        await witness.start(f"weigh {thing}")
        return len(thing)

    options.add_policy(_helper, name="helper", to=["librarian"])
    options.add_agent(AgentSpec(name="critic"), to=["librarian"])
    options.add_policy(_librarian, name="librarian")
    return options


def _critic(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    if len(messages) == 1:
        return ModelResponse([ToolCallPart("weigh", {"thing": "a book"}, tool_call_id="critic-1")])
    return ModelResponse([TextPart("It is light.")])


def _helper(observations: Conversation, choices: Choices) -> Any:
    """Help with a task."""
    if not observations.results():
        return [choices.call("pay", amount=7), choices.call("search", query="help")]
    return {"helped": _values(observations)}


def _librarian(observations: Conversation, choices: Choices) -> Any:
    match len(observations.results()):
        case 0:
            books = [choices.call("search", query=query) for query in ("tea", "milk")]
            return [choices.say("I look."), *books, choices.call("pay", amount=30), choices.call("search", query=3)]
        case 4:
            return under(FirstSuccess(), [choices.call("far_shelf"), choices.call("reserve", book="tea")])
        case 6:
            rule = Groups(groups=(("helper", "critic"), ("reserve",)))
            ask = [choices.call("helper", task="Help me."), choices.call("critic", task="Is it light?")]
            return under(rule, [choices.call("reserve", book="milk"), *ask])
        case _:
            return " ".join(map(str, _values(observations)))


def _values(observations: Conversation) -> list[Any]:
    found = [message.payload for message in observations.results()]
    return [each.result or each.error_type for each in found if isinstance(each, OptionResultPayload)]


async def program(ledger: Ledger, witness: Witness) -> str:
    model = FunctionModel(_critic)
    async with Executor(ledger, options_on(witness), policy="librarian", model=model) as executor:
        outcomes = await asyncio.gather(*(executor.run("Tea?", thread_id=thread) for thread in ("one", "two")))
    return "; ".join(str(outcome.response or outcome.error_message) for outcome in outcomes)


if __name__ == "__main__":
    serve(program)

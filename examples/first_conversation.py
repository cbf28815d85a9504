"""Build a conversation, show it, write it down, read it back, and say it in other formats. Needs no network and no key."""

from antiphon import (
    Conversation,
    Message,
    MessageBuilder,
    OptionCallPayload,
    OptionResultBuilder,
    OptionResultPayload,
    decode,
    dumps,
    encode,
    loads,
)
from antiphon.dialects import get, names


def build() -> Conversation:
    """A user asks, an assistant calls two tools at once, one of them fails, and the assistant answers."""
    question = MessageBuilder.next_step(None).add_text("What is the weather in Oslo, and what does this sky look like?")
    question.add_image("the sky this morning", "https://example.com/sky.jpg")
    asked = question.to_message()

    choice = MessageBuilder.continue_step(asked, policy="assistant")
    choice.add_text("I look at both.")
    choice.add_option_call("get_weather", {"city": "Oslo"})
    choice.add_option_call("describe_image", {"url": "https://example.com/sky.jpg", "words": 20})
    weather, picture = choice.option_calls

    sunny = OptionResultBuilder.response_to(weather).success({"sky": "clear", "celsius": -3.5})
    failed = OptionResultBuilder.response_to(picture).error("NotFound", "no such image", retryable=True)
    answer = MessageBuilder.next_step(asked, policy="assistant").add_text("Clear sky, -3.5 °C. The image could not be found.")
    return Conversation([asked, *choice.to_messages(), sunny, failed, answer.to_message()])


def describe(message: Message) -> str:
    """One line about a message, for people."""
    match message.payload:
        case OptionCallPayload(option_name=name, arguments=arguments):
            return f"calls {name} with {arguments}"
        case OptionResultPayload(is_error=True, error_type=kind, error_message=why):
            return f"failed: {kind}: {why}"
        case OptionResultPayload(result=result):
            return f"gives {result}"
        case _:
            return message.text or f"shows {len(message.parts)} parts"


def main() -> None:
    conversation = build()
    print("A conversation of", len(conversation), "messages:\n")
    for message in conversation:
        print(f"  step {message.step_num}  {message.policy:>14}  {describe(message)}")

    print("\nIts decisions, each with what was known before:\n")
    for transition in conversation.transitions():
        print(
            f"  step {transition.step_num}: knew {len(transition.observation)} messages,"
            f" made {len(transition.actions)} calls, got {len(transition.results)} results"
        )

    written = dumps(conversation)
    again = loads(written, Conversation)
    print(f"\nWritten down: {len(written)} bytes, {len(written.splitlines())} lines of JSON.")
    print("Read back:   ", "the same conversation" if again == conversation else "something else!")
    print("Written again:", "the same bytes" if dumps(again) == written else "other bytes!")

    print("\nIn other formats, with what each cannot say:\n")
    for name in names():
        encoded = encode(conversation, name)
        lost = ", ".join(sorted({loss.what for loss in encoded.losses})) or "nothing"
        again = encode(decode(encoded.value, name), name).value
        back = "back the same" if again == encoded.value else "back other data!"
        print(f"  {get(name).summary:<37} {len(encoded.value)} units, {back}, loses {lost}")


if __name__ == "__main__":
    main()

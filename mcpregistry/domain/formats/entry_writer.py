"""One ``ServerEntry`` to a raw entry of a file, by the format's table of keys.

An entry that came from the same format comes back as it stood: order, unknown keys, explicit
defaults and spellings. What the format cannot say is reported, never silently dropped.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from mcpregistry.domain.formats import placeholders
from mcpregistry.domain.formats.document import Json, JsonObject, Oauth, Parked, ServerEntry
from mcpregistry.domain.formats.keys import (
    FormatKeys,
    OauthKeys,
    infer_transport,
    make_slug,
    parse_transport,
)
from mcpregistry.domain.formats.notes import FormatReport, make_pointer


def write_servers(
    keys: FormatKeys, servers: Iterable[ServerEntry], at: str, report: FormatReport
) -> JsonObject:
    """A map of servers under their keys. One that the format cannot express at all is left out and
    refused."""
    written: JsonObject = {}
    for server in servers:
        key = restore_file_key(server, keys.family)
        raw = write_entry(keys, server, at + make_pointer(key), report)
        if raw is not None:
            written[key] = raw
    return written


def restore_file_key(server: ServerEntry, family: str) -> str:
    """The key as the file of this family spelled it, as long as it still means this server."""
    spelled = server.get_parked(family).spelling.get("key")
    return spelled if isinstance(spelled, str) and make_slug(spelled) == server.key else server.key


def write_entry(
    keys: FormatKeys, server: ServerEntry, at: str, report: FormatReport
) -> JsonObject | None:
    """One server as a raw entry; None, with a refused note, when the format has no such
    transport."""
    if server.transport not in keys.transports:
        sentence = f"This format does not support servers with the transport {server.transport}."
        report.refuse(at, sentence, "Leave the server out, or choose another format.")
        return None
    return _Writer(keys, server, at, report).write()


def compose(parked: Parked, must: JsonObject, optional: JsonObject) -> JsonObject:
    """``must`` and, where the original had them, ``optional`` and unknown keys; in the original's
    order."""
    known = {**{key: value for key, value in optional.items() if key in parked.order}, **must}
    whole = {
        key: _merge_values(parked.keys.get(key), known.get(key, parked.keys.get(key)))
        for key in {**known, **parked.keys}
    }
    return {key: whole[key] for key in (*parked.order, *whole) if key in whole}


def _merge_values(unknown: Json, known: Json) -> Json:
    if not isinstance(unknown, dict) or not isinstance(known, dict):
        return known
    return {**{key: None for key, value in unknown.items() if value is None}, **known} | {
        key: value for key, value in unknown.items() if value is not None
    }


class _Writer:
    def __init__(
        self, keys: FormatKeys, server: ServerEntry, at: str, report: FormatReport
    ) -> None:
        self.keys = keys
        self.server = server
        self.parked = server.get_parked(keys.family)
        self.at = at
        self.report = report
        self.must: JsonObject = {}
        self.optional: JsonObject = {}

    def write(self) -> JsonObject:
        server = self.server
        keys = self.keys
        self._write_transport()
        self._write_name()
        self._write_command()
        self._write_if_needed(keys.env[0], dict(server.env), "env", aliases=keys.env)
        self._write_if_needed(keys.env_file, server.env_file, "env_file")
        self._write_if_needed(keys.cwd, server.cwd, "cwd")
        self._write_if_needed("url" if keys.remote else "", server.url, "url")
        self._write_if_needed("headers" if keys.remote else "", dict(server.headers), "headers")
        self._write_enabled()
        approve = (
            server.auto_approve
            if isinstance(server.auto_approve, bool)
            else list(server.auto_approve)
        )
        self._write_if_needed(
            next(iter(keys.auto_approve), ""), approve, "auto_approve", aliases=keys.auto_approve
        )
        self._write_tools()
        self._write_timeouts()
        self._write_oauth()
        if server.description:
            self._report_no_place("description")
        must = {key: self._spell_placeholders(value, key) for key, value in self.must.items()}
        return compose(self.parked, must, self.optional)

    def _write_if_needed(
        self, key: str, value: Json, column: str, *, aliases: tuple[str, ...] = ()
    ) -> None:
        """Write a value that is not its default; the default only where the original said it."""
        key = next((name for name in aliases if name in self.parked.order), key)
        if not key:
            if value:
                self._report_no_place(column)
        elif value:
            self.must[key] = value
            self._report_perhaps_unread(key, column)
        else:
            self.optional[key] = value

    def _report_no_place(self, column: str) -> None:
        self.report.add(
            "parked",
            self.at + make_pointer(column),
            f"This format cannot store “{column.replace('_', ' ')}”. The value is kept only on this site.",
            column=column,
        )

    def _report_perhaps_unread(self, key: str, column: str) -> None:
        if column in self.keys.unofficial and key not in self.parked.order:
            sentence = "The value is written, but the program that reads this file may ignore it."
            self.report.add("translated", self.at + make_pointer(key), sentence, column=column)

    def _write_transport(self) -> None:
        server = self.server
        keys = self.keys
        said = next((key for key in keys.transport if key in self.parked.order), "")
        implied = infer_transport(server.url)
        word = self.parked.spelling.get(said) if said else None
        if word is None or parse_transport(word, server.url) != server.transport:
            word = keys.transports[server.transport]
        fresh = not self.parked.order and (server.transport != "stdio" or keys.says_stdio)
        if keys.transport and (said or fresh or implied != server.transport):
            self.must[said or keys.transport[0]] = word
            implied = parse_transport(word, server.url) or implied
        if implied != server.transport:
            sentence = f"Programs that read this file will use the transport {implied} instead of {server.transport}."
            self.report.add("parked", self.at + make_pointer("url"), sentence, column="transport")

    def _write_name(self) -> None:
        server = self.server
        key = self.keys.name
        if key:
            self.must[key] = server.name or server.key
        elif server.name not in ("", server.key, self.parked.spelling.get("key")):
            self._report_no_place("name")

    def _write_command(self) -> None:
        argv = list(self.server.command)
        order = self.parked.order
        array = self.parked.spelling.get("command")
        if not argv:
            return
        if array is None and not (self.keys.command_as_array and "command" not in order):
            self.must["command"] = argv[0]
            self.must |= {"args": argv[1:]} if argv[1:] or self.keys.args_required else {}
            self.optional["args"] = []
            return
        count = (
            array
            if isinstance(array, int) and "args" in order and 0 < array < len(argv)
            else len(argv)
        )
        self.must["command"] = argv[:count]
        self.must |= {"args": argv[count:]} if argv[count:] else {}
        self.optional["args"] = []

    def _write_enabled(self) -> None:
        names = self.keys.enabled
        enabled = self.server.enabled
        said = [name for name in names if name in self.parked.order]
        if not names:
            if not enabled:
                self._report_no_place("enabled")
        elif said:
            self.must |= {name: enabled is (name == "enabled") for name in said}
        elif not enabled or self.keys.enabled_required:
            self.must[names[0]] = enabled is (names[0] == "enabled")
            self._report_perhaps_unread(names[0], "enabled")

    def _write_tools(self) -> None:
        key = self.keys.tools
        allowed = self.server.tools_allowed
        if allowed is None:
            self.optional |= {key: ["*"]} if key else {}
        elif key:
            self.must[key] = list(allowed)
        else:
            self._report_no_place("tools_allowed")

    def _write_timeouts(self) -> None:
        connect = self.server.connect_timeout_ms
        request = self.server.request_timeout_ms
        if self.keys.timeout == "two":
            said = self.parked.spelling.get("timeout") or []
            parts = {"startup": connect, "request": request}
            self._write_if_needed(
                "timeout",
                {key: ms for key, ms in parts.items() if ms is not None or key in said},
                "timeout",
            )
            return
        self._write_if_needed("timeout" if self.keys.timeout else "", connect, "connect_timeout_ms")
        self._write_if_needed("", request, "request_timeout_ms")

    def _write_oauth(self) -> None:
        keys = self.keys.oauth
        oauth = self.server.oauth
        if oauth is None:
            return
        if keys is None or (oauth.off and not keys.may_be_off):
            self._report_no_place("oauth")
        else:
            self.must[keys.key] = False if oauth.off else self._build_oauth_object(keys, oauth)

    def _build_oauth_object(self, keys: OauthKeys, oauth: Oauth) -> JsonObject:
        spelling = self.parked.spelling.get("oauth") or {}
        said = spelling.get("order", ())
        as_text = (
            spelling.get("text", keys.scopes_as_text)
            if keys.names.get("scopes") in said
            else keys.scopes_as_text
        )
        written: JsonObject = {}
        for column in (
            "client_id",
            "client_secret",
            "scopes",
            "redirect_uri",
            "callback_port",
            "metadata_url",
        ):
            value = getattr(oauth, column)
            if column == "scopes":
                value = " ".join(value) if as_text else list(value)
            if key := keys.names.get(column):
                written |= {key: value} if value or key in said else {}
            elif value:
                self.report.add(
                    "parked",
                    self.at + make_pointer(keys.key, column),
                    "This format cannot store this value. The value is kept only on this site.",
                    column="oauth",
                )
        return written

    def _spell_placeholders(self, value: Json, *path: str | int) -> Json:
        """Every text of the value with its placeholders as the host writes them."""
        if isinstance(value, dict):
            return {key: self._spell_placeholders(item, *path, key) for key, item in value.items()}
        if isinstance(value, list):
            return [
                self._spell_placeholders(item, *path, index) for index, item in enumerate(value)
            ]
        if not isinstance(value, str) or path[0] in self.keys.transport:
            return value
        if make_pointer(*path) in self.parked.spelling.get("plain", ()):
            return _restore_number(value)
        kinds: Mapping[str, list[str]] = self.parked.spelling.get("placeholders", {})
        rendering = placeholders.write(value, self.keys.dialect, kinds.get(make_pointer(*path), ()))
        for loss in rendering.lost:
            at = self.at + make_pointer(*path)
            self.report.add(
                "parked",
                at,
                f"The placeholder changes its meaning in this format: {loss}.",
                column=self._find_column(path),
            )
        return rendering.text

    def _find_column(self, path: tuple[str | int, ...]) -> str:
        first = str(path[0])
        if first in self.keys.env:
            return "env"
        if self.keys.oauth and first == self.keys.oauth.key:
            return "oauth"
        return {"args": "command", self.keys.cwd: "cwd", self.keys.env_file: "env_file"}.get(
            first, first
        )


def _restore_number(text: str) -> Json:
    """What the file wrote as a number or a switch, as long as the text still is one."""
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return value if isinstance(value, bool | int | float) else text

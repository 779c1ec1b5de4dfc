"""One server entry of any file to a ``ServerEntry``, by the format's table of keys.

Every key ends as a note: kept, translated, parked or refused. An entry with anything refused is not
returned.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from mcpregistry.domain.formats import placeholders
from mcpregistry.domain.formats.document import Json, JsonObject, Oauth, Parked, ServerEntry
from mcpregistry.domain.formats.keys import (
    FormatKeys,
    OauthKeys,
    find_url_problem,
    infer_transport,
    make_slug,
    parse_transport,
)
from mcpregistry.domain.formats.notes import KEPT, FormatReport, make_pointer
from mcpregistry.domain.servers.target import TransportKind

MAX_TIMEOUT_MS = 86_400_000


def read_servers(
    keys: FormatKeys, entries: Mapping[str, Json], at: str, report: FormatReport
) -> tuple[ServerEntry, ...]:
    """The entries of a map of servers; an unusable one is left out, with a refused note."""
    named = ((key, raw, at + make_pointer(key)) for key, raw in entries.items())
    return read_entries(keys, named, report)


def read_entries(
    keys: FormatKeys, entries: Iterable[tuple[str, Json, str]], report: FormatReport
) -> tuple[ServerEntry, ...]:
    """As ``read_servers``, for entries given as (key, raw entry, JSON pointer)."""
    servers: dict[str, ServerEntry] = {}
    for key, raw, at in entries:
        report.entry = at
        if not isinstance(raw, dict):
            report.refuse(at, "The entry is not an object.", "Write it as { … }.")
        elif not make_slug(key):
            report.refuse(at, "The name contains no letter or digit.", "Rename the server.")
        elif make_slug(key) in servers:
            report.refuse(
                at,
                f"Another server of this file already has the name {make_slug(key)}.",
                "Rename one of the two servers.",
            )
        elif entry := _Entry(keys, key, raw, at, report).read():
            servers[entry.key] = entry
    report.entry = ""
    return tuple(servers.values())


class _Entry:
    """Takes the keys of one raw entry one by one; what nobody took is parked."""

    def __init__(
        self, keys: FormatKeys, key: str, raw: JsonObject, at: str, report: FormatReport
    ) -> None:
        self.keys = keys
        self.key = key
        self.raw = raw
        self.at = at
        self.report = report
        self.taken: set[str] = set()
        self.spelling: JsonObject = {}
        self.kinds: dict[str, list[str]] = {}
        self.nested: JsonObject = {}  # unknown keys of an object of which we know others
        self.absent: JsonObject = {}  # variables and headers that are null

    def read(self) -> ServerEntry | None:
        already = len([note for note in self.report.notes if note.action == "refused"])
        entry = self._build()
        refused = len([note for note in self.report.notes if note.action == "refused"]) > already
        return None if refused else entry

    def _build(self) -> ServerEntry:
        keys = self.keys
        command = self._read_command()
        url = self._read_text("url") if keys.remote else ""
        connect, request = self._read_timeouts()
        columns: dict[str, Any] = {
            "transport": self._read_transport(command, url),
            "command": command,
            "url": url,
            "name": self._read_name(),
            "env": self._read_map(*keys.env, column="env"),
            "headers": self._read_map("headers", column="headers") if keys.remote else {},
            "env_file": self._read_text(keys.env_file, column="env_file"),
            "cwd": self._read_text(keys.cwd, column="cwd"),
            "enabled": self._read_enabled(),
            "connect_timeout_ms": connect,
            "request_timeout_ms": request,
            "auto_approve": self._read_auto_approve(),
            "tools_allowed": self._read_tools(),
            "oauth": self._read_oauth(keys.oauth) if keys.oauth else None,
        }
        return ServerEntry(
            key=make_slug(self.key),
            parked={keys.family: self._collect_parked()},
            at=self.at,
            **columns,
        )

    # One key each

    def _take(self, *names: str) -> tuple[str, Json]:
        """The first of the names that the entry has, and its value; ("", None) if it has none. Null
        means absent."""
        for name in names:
            if name and self.raw.get(name) is not None:
                self.taken.add(name)
                return name, self.raw[name]
        return "", None

    def _report_kept(self, name: str, column: str = "") -> None:
        self.report.add("kept", self.at + make_pointer(name), KEPT, column=column)

    def _report_translated(self, name: str, sentence: str, column: str = "") -> None:
        self.report.add("translated", self.at + make_pointer(name), sentence, column=column)

    def _refuse(self, name: str, sentence: str, remedy: str) -> None:
        self.report.refuse(
            self.at + (make_pointer(*name.split("/")) if name else ""), sentence, remedy
        )

    def _convert_placeholders(self, text: str, *path: str | int) -> str:
        reading = placeholders.read(text, self.keys.dialect)
        if reading.kinds:
            self.kinds[make_pointer(*path)] = list(reading.kinds)
        if reading.changed:
            self.report.add(
                "translated",
                self.at + make_pointer(*path),
                "The placeholders are rewritten in this site's syntax.",
            )
        if reading.foreign:
            self.report.add(
                "kept",
                self.at + make_pointer(*path),
                "A placeholder of another program is kept as plain text. It will not be replaced.",
                "Write ${NAME} for an environment variable or ${cred:NAME} for a stored credential.",
            )
        return reading.text

    def _read_text(self, name: str, *, column: str = "") -> str:
        name, value = self._take(name)
        if not name:
            return ""
        if not isinstance(value, str):
            self._refuse(name, "The value is not text.", "Write it in quotes.")
            return ""
        self._report_kept(name, column or name)
        return self._convert_placeholders(value, name)

    def _read_texts(self, name: str, value: Json) -> tuple[str, ...]:
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            self._refuse(name, "The value is not a list of texts.", 'Write it as ["…", "…"].')
            return ()
        self._report_kept(name)
        return tuple(
            self._convert_placeholders(item, name, index) for index, item in enumerate(value)
        )

    def _read_map(self, *names: str, column: str) -> dict[str, str]:
        name, value = self._take(*names)
        if not name:
            return {}
        if not isinstance(value, dict):
            self._refuse(name, "The value is not an object.", 'Write it as {"NAME": "value"}.')
            return {}
        self._report_kept(name, column)
        texts = {key: self._convert_to_text(item, name, key) for key, item in value.items()}
        return {
            key: self._convert_placeholders(text, name, key)
            for key, text in texts.items()
            if text is not None
        }

    def _convert_to_text(self, value: Json, name: str, key: str) -> str | None:
        """A number or a switch as its text; None for null, which unsets the variable, and for what
        is refused."""
        if isinstance(value, str):
            return value
        at = self.at + make_pointer(name, key)
        if value is None:
            self.absent.setdefault(name, {})[key] = None
            self.report.add("parked", at, "The value is null, so the variable is not set.")
        elif isinstance(value, bool | int | float):
            self.spelling.setdefault("plain", []).append(make_pointer(name, key))
            self.report.add("translated", at, "The value is used as text.")
            return json.dumps(value)
        else:
            self.report.refuse(at, "The value is not text.", "Write it in quotes.")
        return None

    def _read_name(self) -> str:
        spelled = self.key if make_slug(self.key) != self.key else ""
        if spelled:
            self.spelling["key"] = spelled
            self.report.add(
                "translated",
                self.at,
                f"The server gets the name {make_slug(self.key)}.",
                column="key",
            )
        name = self._read_text(self.keys.name)
        return name if name and name != make_slug(self.key) else spelled

    def _read_command(self) -> tuple[str, ...]:
        name, value = self._take("command")
        empty = value in ("", [])
        if isinstance(value, list):
            self.spelling["command"] = len(value)
            first = self._read_texts(name, value)
        else:
            first = tuple(filter(None, [self._read_text("command")]))
        args, value = self._take("args")
        rest = self._read_texts(args, value) if args else ()
        if empty or (first and not first[0].strip()):
            self._refuse(name, "The command is empty.", "Enter the program to start.")
        if args and not name:
            self.taken.discard(args)  # arguments of nothing: parked with the other unknown keys
            return ()
        return first + rest

    def _read_transport(self, command: tuple[str, ...], url: str) -> TransportKind:
        name, word = self._take(*self.keys.transport)
        if name:
            self.spelling[name] = word
        named = parse_transport(word, url) if isinstance(word, str) else None
        transport = named or infer_transport(url)
        if name and named is None:
            self._refuse(name, "The transport is not valid.", "Use stdio, http, sse or websocket.")
        elif name and word != transport:
            self._report_translated(name, f"The transport is read as {transport}.", "transport")
        elif name:
            self._report_kept(name, "transport")
        elif command and url:
            self._refuse(
                "",
                "The entry has both a command and a url.",
                "Remove the command or the url, or add a type.",
            )
        self._check_target(transport, command, url)
        return transport

    def _check_target(self, transport: TransportKind, command: tuple[str, ...], url: str) -> None:
        if transport == "stdio":
            if not command and "command" not in self.taken:
                missing = "a command or a url" if self.keys.remote else "a command"
                self._refuse(
                    "",
                    f"The entry needs {missing}.",
                    "Add the command that starts the server, or its address.",
                )
            return
        if not url:
            self._refuse("", "The entry needs a url.", "Add the address of the server.")
        elif problem := find_url_problem(url, transport):
            self._refuse("url", *problem)

    def _read_enabled(self) -> bool:
        found: list[bool] = []
        for key in self.keys.enabled:
            name, value = self._take(key)
            if name and not isinstance(value, bool):
                self._refuse(name, "The value must be true or false.", "Write true or false.")
            elif name:
                self._report_kept(name, "enabled")
                found.append(value is (name == "enabled"))
        if len(set(found)) > 1:
            self._refuse(
                "",
                "The keys enabled and disabled contradict each other.",
                "Keep one of the two keys.",
            )
        return all(found)

    def _read_auto_approve(self) -> bool | tuple[str, ...]:
        name, value = self._take(*self.keys.auto_approve)
        if isinstance(value, bool):
            self._report_kept(name, "auto_approve")
            return value
        return self._read_texts(name, value) if name else False

    def _read_tools(self) -> tuple[str, ...] | None:
        name, value = self._take(self.keys.tools)
        names = self._read_texts(name, value) if name else ("*",)
        return None if names == ("*",) else names

    def _read_timeouts(self) -> tuple[int | None, int | None]:
        name, value = self._take("timeout") if self.keys.timeout else ("", None)
        if not name:
            return None, None
        if self.keys.timeout == "one":
            return self._read_milliseconds(name, value), None
        if not isinstance(value, dict):
            self._refuse(
                name,
                "The value is not an object.",
                'Write it as {"startup": 30000, "request": 30000}.',
            )
            return None, None
        self.nested[name] = {
            key: item for key, item in value.items() if key not in ("startup", "request")
        }
        self.spelling["timeout"] = list(value)
        return self._read_milliseconds(
            f"{name}/startup", value.get("startup")
        ), self._read_milliseconds(f"{name}/request", value.get("request"))

    def _read_milliseconds(self, path: str, value: Json) -> int | None:
        if value is None:
            return None
        if not isinstance(value, int) or isinstance(value, bool) or not 0 < value <= MAX_TIMEOUT_MS:
            self._refuse(
                path,
                "The value is not a whole number of milliseconds.",
                "Use a number from 1 to 86400000.",
            )
            return None
        self.report.add("kept", self.at + make_pointer(*path.split("/")), KEPT)
        return value

    def _read_oauth(self, keys: OauthKeys) -> Oauth | None:
        name, value = self._take(keys.key)
        if value is False and keys.may_be_off:
            self._report_kept(name, "oauth")
            return Oauth(off=True)
        if not name:
            return None
        if not isinstance(value, dict):
            self._refuse(name, "The value is not an object.", "Write it as { … }.")
            return None
        known = {file_key: column for column, file_key in keys.names.items()}
        self.nested[name] = {key: item for key, item in value.items() if key not in known}
        self.spelling["oauth"] = {
            "order": list(value),
            "text": isinstance(value.get(keys.names.get("scopes", "")), str),
        }
        self._report_kept(name, "oauth")
        found = {
            known[key]: self._read_oauth_value(name, key, known[key], item)
            for key, item in value.items()
            if key in known
        }
        return Oauth(**found)

    def _read_oauth_value(self, name: str, key: str, column: str, value: Json) -> Any:
        if (
            column == "scopes"
            and isinstance(value, list)
            and all(isinstance(item, str) for item in value)
        ):
            return tuple(value)
        if column == "callback_port" and isinstance(value, int) and not isinstance(value, bool):
            return value
        if isinstance(value, str) and column != "callback_port":
            return (
                tuple(value.split())
                if column == "scopes"
                else self._convert_placeholders(value, name, key)
            )
        self._refuse(f"{name}/{key}", "The value has the wrong type.", "Correct the value.")
        return ()

    def _collect_parked(self) -> Parked:
        unknown = {key: value for key, value in self.raw.items() if key not in self.taken}
        for key in (key for key, value in unknown.items() if value is not None):
            self.report.park_unknown_key(self.at + make_pointer(key))
        for outer, inner in self.nested.items():
            for key in inner:
                self.report.park_unknown_key(self.at + make_pointer(outer, key))
        if self.kinds:
            self.spelling["placeholders"] = self.kinds
        nested = {key: value for key, value in self.nested.items() if value}
        order = tuple(key for key, value in self.raw.items() if value is not None)
        return Parked({**unknown, **nested, **self.absent}, order, self.spelling)

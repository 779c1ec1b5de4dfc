"""The entries of a host's file, and its text with one of them put in or taken out.

Whatever way the text is changed, both texts are read and compared: all else must say what it said,
or nothing is returned.
"""

from __future__ import annotations

import copy
from collections.abc import Collection
from types import ModuleType
from typing import Any

from mcpregistry.domain.formats.notes import FileInvalid, make_pointer
from mcpregistry.domain.hosts import jsonc, toml
from mcpregistry.domain.hosts.table import HostProgram

_LANGUAGES: dict[str, ModuleType] = {"json": jsonc, "toml": toml}
_MARK = "\ufeff"  # some editors of Windows begin a file with it


def read_file_entries(host: HostProgram, text: str, file: str) -> dict[str, dict[str, Any]]:
    """The servers that stand in the file, by name. Raises ``FileInvalid`` for a file that cannot be
    read."""
    servers = _LANGUAGES[host.language].parse(text.removeprefix(_MARK), file).get(host.section, {})
    if not isinstance(servers, dict):
        raise FileInvalid(
            file,
            "This value is not an object.",
            at=make_pointer(host.section),
            remedy="Replace it with {}, or remove it.",
        )
    return {key: entry for key, entry in servers.items() if isinstance(entry, dict)}


def put_entry(
    host: HostProgram,
    text: str,
    key: str,
    entry: dict[str, Any],
    file: str,
    *,
    own: Collection[str] = (),
) -> str:
    """The text with this entry. What somebody has added to the one that stood there (a time limit,
    say) stays, and so do variables for the program, but for those that are our ``own``.
    """
    language, mark, body = _split(host, text)
    data = language.parse(body, file)
    merged = _merge_entry(host, read_file_entries(host, body, file).get(key, {}), entry, own)
    expected = copy.deepcopy(data)
    expected.setdefault(host.section, {})[key] = merged
    return mark + _verify_written_text(
        language, language.put(body, (host.section, key), merged, file), expected, file
    )


def remove_entry(host: HostProgram, text: str, key: str, file: str) -> str:
    """The text without the entry of this name; as it was where there is none."""
    language, mark, body = _split(host, text)
    if key not in read_file_entries(host, body, file):
        return text
    expected = copy.deepcopy(language.parse(body, file))
    del expected[host.section][key]
    if not expected[host.section] and host.language == "toml":
        # the table was there by this entry alone, or has a header of its own
        del expected[host.section]
    return mark + _verify_written_text(
        language, language.drop(body, (host.section, key), file), expected, file, empty=host.section
    )


def build_new_file(host: HostProgram, key: str, entry: dict[str, Any]) -> str:
    """A whole file with nothing but this entry: what people are shown, and paste."""
    return put_entry(host, "", key, entry, host.slug)


def _split(host: HostProgram, text: str) -> tuple[ModuleType, str, str]:
    mark = _MARK if text.startswith(_MARK) else ""
    return _LANGUAGES[host.language], mark, text.removeprefix(_MARK)


def _merge_entry(
    host: HostProgram, before: dict[str, Any], entry: dict[str, Any], own: Collection[str]
) -> dict[str, Any]:
    """Ours first, then what is not ours. What somebody has narrowed of what we only begin with
    stays as well."""
    ours = host.spelling.keys()
    rest = {key: value for key, value in before.items() if key not in ours}
    name = host.spelling.env
    if isinstance(before.get(name), dict) and name in entry:
        theirs = {
            variable: value for variable, value in before[name].items() if variable not in own
        }
        entry = entry | {name: theirs | entry[name]}
    begun = {key: before[key] for key in host.spelling.at_first if key in before}
    return entry | begun | rest


def _verify_written_text(
    language: ModuleType, text: str, expected: dict[str, Any], file: str, *, empty: str = ""
) -> str:
    """The text, if it says what is expected; a section ``empty`` may be left without entries."""
    try:
        said = language.parse(text, file)
    except FileInvalid:
        said = None
    if said is not None and empty not in expected and said.get(empty) == {}:
        del said[empty]
    if said != expected:
        raise FileInvalid(
            file,
            "The entry cannot be changed without changing other parts of the file.",
            remedy="The file was not changed. Add the entry yourself: `manage.py connect --dry-run` shows the entry.",
        )
    return text

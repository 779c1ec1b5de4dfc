"""What a bundle asks for, as a way with inputs like those of a registry's entry; filled in by the
same ``filled``."""

from __future__ import annotations

from collections.abc import Iterable

from mcpregistry.domain.errors import ConfigInvalid
from mcpregistry.domain.installs.mcpb import FOLDER, SETTING, Manifest, Setting
from mcpregistry.domain.registry.install_options import InstallInput, InstallOption, InstallSlot


def build_bundle_option(manifest: Manifest, folder: str) -> InstallOption:
    """The bundle in ``folder``: slots for its environment and for the words behind its fixed ones.

    Raises ConfigInvalid where a secret would stand on its command line.
    """
    inputs = {each.key: _read_input(each) for each in manifest.settings}
    rest = manifest.words[len(manifest.fixed) :]
    if any(inputs[key].secret for word in rest for key in SETTING.findall(word)):
        raise ConfigInvalid(
            "The bundle needs a secret on its command line, where other users of this machine could read it.",
            remedy="Report this problem to the developers of the bundle, or choose another install option.",
        )
    slots = [
        _build_slot("environment", name, value, inputs, folder)
        for name, value in manifest.env.items()
    ]
    return InstallOption(
        "mcpb",
        "stdio",
        manifest.name,
        manifest.version,
        (*slots, *_build_argument_slots(rest, inputs, folder)),
    )


def _read_input(setting: Setting) -> InstallInput:
    choices = ("true", "false") if setting.kind == "boolean" else ()
    return InstallInput(
        place="setting",
        name=setting.key,
        description=setting.description or setting.title,
        required=setting.required,
        secret=setting.sensitive,
        default=setting.default,
        choices=choices,
        variable=setting.key,
        many=setting.many,
    )


def _build_argument_slots(
    words: Iterable[str], inputs: dict[str, InstallInput], folder: str
) -> Iterable[InstallSlot]:
    """An option before a word that a person may leave empty goes with it."""
    waiting: list[str] = []
    for word in words:
        if word.startswith("-") and not SETTING.search(word):
            yield from (_build_slot("argument", "", each, inputs, folder) for each in waiting)
            waiting = [word]
            continue
        option = waiting.pop() if waiting and SETTING.search(word) else ""
        yield from (_build_slot("argument", "", each, inputs, folder) for each in waiting)
        waiting = []
        yield _build_slot("argument", option, word, inputs, folder)
    yield from (_build_slot("argument", "", each, inputs, folder) for each in waiting)


def _build_slot(
    place: str, name: str, text: str, inputs: dict[str, InstallInput], folder: str
) -> InstallSlot:
    used = tuple(inputs[key] for key in dict.fromkeys(SETTING.findall(text)))
    written = SETTING.sub(lambda match: "{" + match[1] + "}", text.replace(FOLDER, folder))
    return InstallSlot(place, name, used, written)

"""Where a host keeps its file, on each system."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

SYSTEMS = {"linux": "Linux", "macos": "macOS", "windows": "Windows"}


@dataclass(frozen=True, slots=True)
class Places:
    """``~`` is the person's folder. ``variable``: the environment variable that names another
    folder for the file."""

    linux: str
    macos: str
    windows: str
    variable: str = ""

    def describe_paths(self) -> dict[str, str]:
        """Each system's name for people, with the path as people write it there."""
        return {title: getattr(self, system) for system, title in SYSTEMS.items()}

    def path(self, system: str, home: str, environ: Mapping[str, str]) -> str:
        """The absolute path for whoever has this environment, on ``linux`` or ``macos``."""
        place: str = getattr(self, system)
        if folder := environ.get(self.variable) if self.variable else None:
            return str(PurePosixPath(folder) / PurePosixPath(place).name)
        below = place.removeprefix("~/.config/")
        if below != place and environ.get("XDG_CONFIG_HOME"):
            return str(PurePosixPath(environ["XDG_CONFIG_HOME"]) / below)
        return place.replace("~", home, 1)


def make_same_places(below_home: str, variable: str = "") -> Places:
    """The same path below the person's folder on every system."""
    return Places(
        f"~/{below_home}",
        f"~/{below_home}",
        "%USERPROFILE%\\" + below_home.replace("/", "\\"),
        variable,
    )


def make_system_places(below: str) -> Places:
    """A program's folder where each system wants such folders to be."""
    windows = "%APPDATA%\\" + below.replace("/", "\\")
    return Places(f"~/.config/{below}", f"~/Library/Application Support/{below}", windows)

"""What an installer's own words mean: one sentence and a remedy, never its output, which holds addresses and paths."""

from __future__ import annotations

import re

from mcpregistry.domain.errors import SlipsnisseError

OUTPUT_READ = 64 * 1024  # of the end of what an installer wrote


class InstallFailed(SlipsnisseError):
    """A package could not be resolved or installed; nothing of it is left."""

    code = "INSTALL_FAILED"


_NAME = r"`?(@?[\w./~-]+(?:[@=]=?[\w.+!~-]+)?)`?"
# The first that matches says it. ``{0}`` is the package; seen with uv 0.13 and npm 11.
_MEANINGS: tuple[tuple[str, str, str], ...] = (
    (
        rf"Hash mismatch for {_NAME}",
        "The file that the index sends for {0} is not the one that was approved: its hash is another.",
        "Do not install it. Ask who runs the index, or resolve the package anew and compare.",
    ),
    (
        r"npm error code EINTEGRITY",
        "A file that the registry sends is not the one that was approved: its hash is another.",
        "Do not install it. Ask who runs the registry, or resolve the package anew and compare.",
    ),
    (
        rf"{_NAME} has no usable wheels|Wheels are required for {_NAME}",
        "{0} has a source distribution only: installing it would run its own code.",
        "Choose a version that has a wheel for this machine, or ask its maker for one.",
    ),
    (
        rf"Package {_NAME} was included as a URL dependency",
        "It needs {0} from an address or a git repository instead of the index.",
        "Only packages of the index are installed. Ask its maker for a version that needs no other.",
    ),
    (
        r"npm error code EALLOW(?:GIT|REMOTE|FILE|DIRECTORY)|npm error command \S+ --no-replace-objects|unknown git error",
        "It needs a package from a git repository or another address instead of the registry.",
        "Only packages of the registry are installed. Ask its maker for a version that needs no other.",
    ),
    (
        rf"there is no version of {_NAME}|No matching version found for {_NAME}",
        "There is no version {0}.",
        "Check the version, or leave it empty for the newest.",
    ),
    (
        rf"{_NAME} was not found in the package registry|resource '([^']{{1,200}})' could not be found",
        "The index has no package {0}.",
        "Check its name.",
    ),
    (
        r"No space left on device|ENOSPC|os error 28|EDQUOT|os error 122|EFBIG|File too large|os error 27",
        "The disk is full, or a file grew beyond what is allowed.",
        "Make room, then ask again.",
    ),
    (
        r"ENOTFOUND|ECONNREFUSED|ECONNRESET|ETIMEDOUT|EAI_AGAIN|Connection refused|dns error|Could not connect|"
        r"Failed to fetch|Request failed after|tcp connect error",
        "The package index does not answer.",
        "Check the network and the settings SLIPSNISSE_PYPI_INDEX and SLIPSNISSE_NPM_REGISTRY, then ask again.",
    ),
    (
        r"npm error code EBADENGINE|does not satisfy Python|requires? Python|Requires-Python",
        "It needs another version of Python or Node than this machine has.",
        "Choose another version of the package.",
    ),
    (
        r"npm error code ERESOLVE|No solution found|ResolutionImpossible",
        "Its dependencies contradict each other, so no set of packages fits.",
        "Choose another version.",
    ),
)


def failure(output: str) -> InstallFailed:
    """What went wrong, by what the installer wrote last. Never quotes it, but for a package's plain name."""
    for pattern, message, remedy in _MEANINGS:
        if found := re.search(pattern, output):
            name = next((group for group in found.groups() if group), "")
            return InstallFailed(message.format(name.rstrip(".")), remedy=remedy)
    return InstallFailed(
        "The installer failed for a reason that is not known here.", remedy="The worker's log has its last words."
    )


def out_of_time(seconds: float) -> InstallFailed:
    """It took too long, and was ended."""
    return InstallFailed(
        f"It took longer than {seconds:,.0f} s and was ended.", remedy="Ask again when the index is quicker."
    )


def too_much(what: str, most: str) -> InstallFailed:
    """It used more than it may, and was ended or taken away again."""
    return InstallFailed(f"It has more {what} than the {most} allowed.", remedy="Choose a smaller server.")


def missing(program: str) -> InstallFailed:
    """The installer itself is not on this machine."""
    if program in ("npm", "node"):
        return InstallFailed(
            "Node.js is needed: this machine has no npm.",
            remedy="Install Node.js 20 or newer with npm, then ask again.",
        )
    if program == "docker":
        return InstallFailed(
            "A container program is needed: this machine has neither docker nor podman.",
            remedy="Install one of them, let this site's user start containers with it, and add the image then.",
        )
    return InstallFailed(
        "uv is needed: it belongs to this site's packages.", remedy="Run `make run` again, it installs them."
    )


INTERRUPTED = InstallFailed("The worker or its installer ended before it was done.", remedy="Ask again.")

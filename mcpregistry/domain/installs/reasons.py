"""What an installer's own words mean: one sentence and a remedy, never its output, which holds
addresses and paths."""

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
        "The Python package index now sends another file for {0} than the approved file: the hash differs.",
        "Do not install this file. Ask the operator of the index, or request the installation again and compare the two locks.",
    ),
    (
        r"npm error code EINTEGRITY",
        "The npm registry now sends another file than the approved file: the hash differs.",
        "Do not install this file. Ask the operator of the registry, or request the installation again and compare the two locks.",
    ),
    (
        rf"{_NAME} has no usable wheels|Wheels are required for {_NAME}",
        "The package {0} is only available as a source distribution, and the installation would run its code.",
        "Choose a version that has a wheel for this machine, or ask the developers for a wheel.",
    ),
    (
        rf"Package {_NAME} was included as a URL dependency",
        "The package depends on {0} from an address or a git repository instead of the Python package index.",
        "This site installs only packages from the Python package index. Ask the developers for a version that needs no other source.",
    ),
    (
        r"npm error code EALLOW(?:GIT|REMOTE|FILE|DIRECTORY)|npm error command \S+ --no-replace-objects|unknown git error",
        "The package depends on a package from a git repository or another address instead of the npm registry.",
        "This site installs only packages from the npm registry. Ask the developers for a version that needs no other source.",
    ),
    (
        rf"there is no version of {_NAME}|No matching version found for {_NAME}",
        "No package with this name and version was found: {0}.",
        "Check the version, or leave the version empty to get the newest version.",
    ),
    (
        rf"{_NAME} was not found in the package registry|resource '([^']{{1,200}})' could not be found",
        'No package named "{0}" was found in the package index.',
        "Check the name of the package.",
    ),
    (
        r"No space left on device|ENOSPC|os error 28|EDQUOT|os error 122|EFBIG|File too large|os error 27",
        "The disk is full, or a file is larger than allowed.",
        "Free disk space, then request the installation again.",
    ),
    (
        r"ENOTFOUND|ECONNREFUSED|ECONNRESET|ETIMEDOUT|EAI_AGAIN|Connection refused|dns error|Could not connect|"
        r"Failed to fetch|Request failed after|tcp connect error",
        "The npm registry or the Python package index does not answer.",
        "Check the network of this machine, and the settings SLIPSNISSE_PYPI_INDEX and SLIPSNISSE_NPM_REGISTRY. Then request the installation again.",
    ),
    (
        r"npm error code EBADENGINE|does not satisfy Python|requires? Python|Requires-Python",
        "The package needs another version of Python or Node.js than this machine has.",
        "Choose another version of the package.",
    ),
    (
        r"npm error code ERESOLVE|No solution found|ResolutionImpossible",
        "The dependencies of the package conflict with each other.",
        "Choose another version of the package.",
    ),
)


def explain_failure(output: str) -> InstallFailed:
    """What went wrong, by what the installer wrote last. Never quotes it, but for a package's plain
    name."""
    for pattern, message, remedy in _MEANINGS:
        if found := re.search(pattern, output):
            name = next((group for group in found.groups() if group), "")
            return InstallFailed(message.format(name.rstrip(".")), remedy=remedy)
    return InstallFailed(
        "The installer failed for an unknown reason.",
        remedy="The end of the installer's output is in the log of the worker.",
    )


def explain_timeout(seconds: float) -> InstallFailed:
    """It took too long, and was ended."""
    return InstallFailed(
        f"The installer did not finish within {seconds:,.0f} s and was stopped.",
        remedy="The npm registry or the Python package index may be slow. Request the installation again later.",
    )


def explain_excess_usage(what: str, most: str) -> InstallFailed:
    """It used more than it may, and was ended or taken away again."""
    return InstallFailed(
        f"The installation needs too much {what}. The limit is {most}.",
        remedy="Choose a server whose package is smaller.",
    )


def explain_missing_installer(program: str) -> InstallFailed:
    """The installer itself is not on this machine."""
    if program in ("npm", "node"):
        return InstallFailed(
            "Node.js is required, but this machine has no npm.",
            remedy="Install Node.js 20 or newer with npm, then request the installation again.",
        )
    if program == "docker":
        return InstallFailed(
            "A container program is required, but this machine has neither docker nor podman.",
            remedy="Install one of them, allow this site's user to start containers, then add the image again.",
        )
    return InstallFailed(
        "The program uv is required, but it is missing in the Python environment of this site.",
        remedy="Run `make run` again, which installs uv.",
    )


INTERRUPTED = InstallFailed(
    "The worker or its installer stopped before the installation was finished.",
    remedy="Request the installation again.",
)

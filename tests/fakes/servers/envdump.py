"""Tells what it was given: environment, directory, umask, open descriptors, arguments, session."""

import json
import os
import sys

from rpc import Server, text, tool


def call(context):
    mask = os.umask(0)
    os.umask(mask)
    descriptors = sorted(int(name) for name in os.listdir("/proc/self/fd") if is_open(int(name)))
    facts = {
        "env": {
            key: value
            for key, value in os.environ.items()
            if key != "LC_CTYPE" or "LC_CTYPE" in given()
        },
        "cwd": os.getcwd(),
        "umask": mask,
        "descriptors": descriptors,
        "argv": sys.argv[1:],
    }
    return text(json.dumps(facts))


def is_open(descriptor):
    """The descriptor that was used to read the list is in it, and closed by now."""
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def given():
    """Names in the environment at exec; the interpreter adds LC_CTYPE to its own copy."""
    with open("/proc/self/environ", "rb") as file:
        return {entry.split(b"=")[0].decode() for entry in file.read().split(b"\0") if entry}


Server([tool("env")], call, name="envdump").run()

"""``manage.py scriptedllm``: serve scripted models in place of a provider, for demos and tests
without key or internet."""

from __future__ import annotations

import socket
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

import yaml
from django.core.management.base import BaseCommand, CommandError

from subagents.llm.scripted.app import ScriptedModels
from subagents.llm.scripted.bundled_scripts import demo_script
from subagents.llm.scripted.local_server import server_for
from subagents.llm.scripted.script import Script, ScriptError, load


class Command(BaseCommand):
    """Serves the demo's script, or one from a file, until it is stopped."""

    help = (
        "Serves models that follow a script, with the APIs of OpenAI (/v1/chat/completions), Anthropic (/v1/messages), Google "
        "(/v1beta/models/NAME:generateContent) and Ollama (/api/chat). GET /journal lists the requests."
    )
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--script",
            type=Path,
            action="append",
            default=[],
            help="Script as a YAML or JSON file. Can be repeated.",
        )
        parser.add_argument(
            "--host", default="127.0.0.1", help="Address to listen on. Default: 127.0.0.1."
        )
        parser.add_argument(
            "--port",
            type=int,
            default=4800,
            help="Port to listen on. Default: 4800. 0 chooses a free port.",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        script = demo_script()
        for path in options["script"]:
            script = script.merge(_read(path))
        listening = socket.create_server((options["host"], options["port"]))
        where = f"http://{options['host']}:{listening.getsockname()[1]}"
        self.stdout.write(
            f"Scripted models at {where}: {', '.join(sorted(script.scenarios))}. Press Ctrl-C to stop."
        )
        self.stdout.flush()
        server_for(ScriptedModels(script)).run(sockets=[listening])


def _read(path: Path) -> Script:
    try:
        return load(yaml.safe_load(path.read_text()))
    except OSError as error:
        raise CommandError(
            f"{path} cannot be read: {error.strerror}. Check its name and permissions."
        ) from error
    except (yaml.YAMLError, ScriptError) as error:
        raise CommandError(f"{path}: {error}") from error

"""Writes the squashed migrations anew, so that a new site gets all its tables in one step: ``python -m tests.squash``.

Run it where a release has brought more single migrations. What is written is the state that all of them lead to; sites of
before go on with the single ones. Look afterwards whether a new single one does something to rows that ``migrate`` itself
makes: only what ``_TAILS`` names is done to a new site.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")

import django
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.operations import CreateModel
from django.db.migrations.state import ModelState, ProjectState
from django.db.migrations.writer import OperationWriter

ROOT = Path(__file__).resolve().parent.parent
_IMPORTS = (
    "from django.conf import settings",
    "from django.db import migrations, models",
    "from mcpregistry.migrations._operations import CreateTables",
)
_SEAL = "seal_what_is_there = import_module('mcpregistry.migrations.0018_audit_seals').seal_what_is_there"
# What is done after the tables are made: to the rows that a new site has.
_TAILS = {
    "mcpregistry": "        migrations.RunPython(seal_what_is_there, migrations.RunPython.noop),\n",
    "subagents": "",
}
_BUT = {"mcpregistry": ", but for the first seal of the audit log", "subagents": ""}

_TEXT = '''\
"""All tables of a new site at once, as migrations 1 to {number} leave them.

Sites that have some of those already go on with the single ones. What these do to rows (they give secrets their scope,
for example) has nothing to do where there are none{but}.
"""

{imports}


class Migration(migrations.Migration):

    initial = True

    replaces = [
{replaces}
    ]

    dependencies = [
        {dependency},
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        CreateTables([
{models}
        ]),
{tail}    ]
'''


def main() -> None:
    """Replace the squashed migration of each app by one of all its single ones."""
    django.setup()
    state = MigrationLoader(None).project_state()
    single = {app: _single(app) for app in _TAILS}
    for app, names in single.items():
        text = _written(app, names, single["mcpregistry"][-1], state)
        folder = ROOT / app / "migrations"
        for before in folder.glob("0001_squashed_*.py"):
            before.unlink()
        (folder / f"0001_squashed_{names[-1]}.py").write_text(text)


def _single(app: str) -> list[str]:
    loader = MigrationLoader(None, replace_migrations=False)
    return sorted(
        name for (label, name), found in loader.disk_migrations.items() if label == app and not found.replaces
    )


def _written(app: str, names: list[str], registry: str, state: ProjectState) -> str:
    models = sorted((model for (label, _), model in state.models.items() if label == app), key=lambda model: model.name)
    written = [OperationWriter(_create(model), indentation=3).serialize() for model in models]
    imports = {*_IMPORTS, *(line for _, lines in written for line in lines)} - {"from django.db import models"}
    tail = _TAILS[app]
    if tail:
        imports.add("from importlib import import_module")
    before = ("auth", "0012_alter_user_first_name_max_length") if app == "mcpregistry" else ("mcpregistry", registry)
    return _TEXT.format(
        number=int(names[-1][:4]), but=_BUT[app], dependency=repr(before), tail=tail,
        imports=_sorted(imports) + (f"\n\n{_SEAL}" if tail else ""),
        replaces="\n".join(f"        {(app, name)!r}," for name in names), models="\n".join(text for text, _ in written),
    )  # fmt: skip


def _create(model: ModelState) -> CreateModel:
    return CreateModel(model.name, list(model.fields.items()), model.options, model.bases, model.managers)


def _sorted(imports: Iterable[str]) -> str:
    return "\n".join(sorted(imports, key=lambda line: (line.startswith("from"), line)))


if __name__ == "__main__":
    main()

"""Forms in a real browser: a field that nobody has touched is sent exactly as the page has
fingerprinted it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.contrib import admin
from django.contrib.auth.models import Group
from django.http import QueryDict
from django.test import RequestFactory

from tests.admin.test_concurrent_edits import CASES, find, page
from tests.fakes.seed import Site, govern

pytestmark = [pytest.mark.web, pytest.mark.one_database, pytest.mark.exhaustive]


def test_untouched_fields_of_every_form_count_as_untouched(window_of: Any, crowd: Site) -> None:
    govern(crowd)
    Group.objects.create(name="Team")
    window = window_of("root")
    request = RequestFactory().get("/")
    request.user = crowd.people["root"]
    for case in CASES:
        row = find(case)
        window.goto(page(row))
        window.wait_for_load_state()
        sent = window.evaluate(
            f"[...new FormData(document.querySelector('#{row._meta.model_name}_form'))]"
        )
        data = QueryDict(mutable=True)
        for name, value in sent:
            data.appendlist(name, value)
        form_class = admin.site._registry[type(row)].get_form(request, row, change=True)
        form = form_class(data, instance=row)
        opened = json.loads(data["_opened"])
        assert {*opened} == {name for name, field in form.fields.items() if not field.disabled}
        assert [name for name in opened if form.is_touched(name, opened[name])] == [], type(row)

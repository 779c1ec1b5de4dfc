"""The steps of one server: its launch is confirmed, it is tested, its definitions are decided on,
agents may use it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from django.contrib import messages
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.translation import gettext, ngettext

from mcpregistry.admin.base import RecordAdmin, actor
from mcpregistry.admin.launch import LaunchPage
from mcpregistry.admin.set_up import page_frame
from mcpregistry.admin.set_up.decision_step import (
    choose_rules,
    entries_of,
    instructions_of,
    numbers,
    rules_of,
)
from mcpregistry.admin.set_up.forms import AccessForm
from mcpregistry.domain.errors import SlipsnisseError
from mcpregistry.domain.text.display import show_invisible_characters
from mcpregistry.models import Agent, Server
from mcpregistry.queries.setup_state import SetupState, read_setup_state, to_decide
from mcpregistry.services.access import agents
from mcpregistry.services.servers import checks, server_setup

_NOTHING_MORE = 286  # htmx and live.js: take this answer and stop asking


class ConfirmStep(LaunchPage):
    """ "Confirm launch" as a step: it leads on to the test."""

    template = "admin/mcpregistry/set_up/confirm.html"

    def facts(self, record: Server) -> dict[str, Any]:
        change = super()._change(record)
        way = {
            "steps": page_frame.steps(read_setup_state(record), "confirm"),
            "step": "confirm",
            "back": change,
        }
        return super().facts(record) | way

    def title(self, record: Server) -> str:
        return page_frame.title_of(record)

    def _change(self, record: Server) -> str:
        return page_frame.address(record)


class StepPage:
    """A view of ``ServerAdmin``: the step that comes next, or the one that ``?step=`` names and
    that can be opened."""

    def __init__(self, admin: RecordAdmin) -> None:
        self.admin = admin

    def __call__(self, request: HttpRequest, pk: int) -> HttpResponse:
        """Show the step; a POST takes the one that was shown, if it still can be taken, and goes on
        to the next."""
        server = _server(self.admin, request, pk)
        now = read_setup_state(server)
        post = request.method == "POST"
        step = (request.POST if post else request.GET).get("step", "")
        if not page_frame.opens(now, step):
            if post:
                self.admin.message_user(
                    request,
                    gettext(
                        "The server was changed after you opened this page. Check the page again."
                    ),
                    messages.WARNING,
                )
                return HttpResponseRedirect(page_frame.address(server))
            step = now.step
        return self._step(request, now, step)

    def _step(self, request: HttpRequest, now: SetupState, step: str) -> HttpResponse:
        if step == "confirm" and request.user.has_perm("mcpregistry.confirm_server"):
            return ConfirmStep(self.admin)(request, str(now.server.pk))
        views: dict[str, Callable[[HttpRequest, SetupState], HttpResponse]] = {
            "confirm": self._show_unconfirmed,
            "test": self._test,
            "definitions": self._definitions,
            "access": self._show_access,
        }
        return views.get(step, self._show_done)(request, now)

    def _show(
        self, request: HttpRequest, now: SetupState, step: str, template: str = "", **context: Any
    ) -> HttpResponse:
        common = {
            "title": page_frame.title_of(now.server),
            "server": now.server,
            "original": now.server,
            "now": now,
            "step": step,
            "steps": page_frame.steps(now, step),
            "next": page_frame.address(now.server),
        }
        return page_frame.show_page(self.admin, request, template or step, common | context)

    def _on(self, request: HttpRequest, server: Server, told: str = "") -> HttpResponse:
        if told:
            self.admin.message_user(request, told, messages.SUCCESS)
        return HttpResponseRedirect(page_frame.address(server))

    def _redirect_with_error(
        self, request: HttpRequest, server: Server, error: SlipsnisseError
    ) -> HttpResponse:
        self.admin.message_user(
            request, show_invisible_characters(str(error), 1_000), messages.ERROR
        )
        return HttpResponseRedirect(page_frame.address(server))

    def _show_unconfirmed(self, request: HttpRequest, now: SetupState) -> HttpResponse:
        """For whoever may not confirm launches: who does, and that the way goes on from here."""
        return self._show(request, now, "confirm", "unconfirmed")

    def _test(self, request: HttpRequest, now: SetupState) -> HttpResponse:
        if request.method == "POST":
            _check_permission(request, "test_server")
            try:
                checks.request_test(
                    server=now.server, actor=actor(request), user=cast(User, request.user)
                )
            except SlipsnisseError as error:
                return self._redirect_with_error(request, now.server, error)
            return self._on(request, now.server)
        live = reverse("admin:mcpregistry_server_set_up_live", args=[now.server.pk])
        return self._show(
            request,
            now,
            "test",
            test=now.test,
            live_url=live,
            may=request.user.has_perm("mcpregistry.test_server"),
        )

    def _definitions(self, request: HttpRequest, now: SetupState) -> HttpResponse:
        if request.method == "POST":
            _check_permission(request, "approve_definition")
            return self._decide(request, now.server)
        tools = to_decide(now.server)
        return self._show(
            request,
            now,
            "definitions",
            entries=entries_of(tools),
            instructions=instructions_of(tools),
            rules=rules_of(request, now.server),
            more=max(now.waiting - len(tools), 0),
            may=request.user.has_perm("mcpregistry.approve_definition"),
        )

    def _decide(self, request: HttpRequest, server: Server) -> HttpResponse:
        try:
            count = server_setup.accept_definitions(
                server=server,
                definitions=numbers(request, "approve"),
                vouched=numbers(request, "vouch"),
                rules=choose_rules(request, server),
                user=cast(User, request.user),
                actor=actor(request),
            )
        except SlipsnisseError as error:
            return self._redirect_with_error(request, server, error)
        told = ngettext(
            "{count} definition approved.", "{count} definitions approved.", count
        ).format(count=count)
        if read_setup_state(server).waiting:
            told += " " + gettext(
                "The other definitions wait for approval, and no agent sees them."
            )
        self.admin.message_user(request, told, messages.SUCCESS)
        return HttpResponseRedirect(page_frame.address(server, "access" if count else ""))

    def _show_access(self, request: HttpRequest, now: SetupState) -> HttpResponse:
        may = request.user.has_perm("mcpregistry.add_grant")
        if request.method == "POST":
            _check_permission(request, "add_grant")
        form = AccessForm(
            request.POST if request.method == "POST" else None,
            may_add=request.user.has_perm("mcpregistry.add_agent"),
            initial={"agents": Agent.objects.filter(enabled=True, slug="local")},
        )
        if form.is_valid():
            try:
                self._open(request, now.server, form.cleaned_data)
            except SlipsnisseError as error:
                form.add_error(None, str(error))
            else:
                return HttpResponseRedirect(page_frame.address(now.server, "done"))
        return self._show(request, now, "access", form=form, may=may)

    @transaction.atomic
    def _open(self, request: HttpRequest, server: Server, given: dict[str, Any]) -> None:
        user = cast(User, request.user)
        chosen = [*given.get("agents", ())]
        if name := given.get("new_agent"):
            chosen.append(
                agents.save_agent(agent=Agent(slug=name, owner=user), actor=actor(request))
            )
        server_setup.grant_to_agents(
            server=server,
            agents=chosen,
            endpoints=given.get("endpoints", ()),
            everything=given["everything"],
            user=user,
            actor=actor(request),
        )

    def _show_done(self, request: HttpRequest, now: SetupState) -> HttpResponse:
        return self._show(request, now, "", "done", connect=page_frame.connect_address(now.agents))


class LivePage:
    """What the step of the test shows while it goes on; at its end the page is read anew and leads
    on."""

    def __init__(self, admin: RecordAdmin) -> None:
        self.admin = admin

    def __call__(self, request: HttpRequest, pk: int) -> HttpResponse:
        """The part of the page; status 286 says that nothing more is to come."""
        now = read_setup_state(_server(self.admin, request, pk))
        ended = not now.testing and ("test" in now.done or now.test is not None)
        context = {"server": now.server, "test": now.test, "now": now}
        return page_frame.show_page(
            self.admin, request, "testing", context, status=_NOTHING_MORE if ended else 200
        )


def _server(admin: RecordAdmin, request: HttpRequest, pk: int) -> Server:
    server = admin.get_object(request, str(pk))
    if server is None:
        raise Http404
    if not admin.has_view_permission(request, server):
        raise PermissionDenied
    return cast(Server, server)


def _check_permission(request: HttpRequest, permission: str) -> None:
    if not request.user.has_perm(f"mcpregistry.{permission}"):
        raise PermissionDenied

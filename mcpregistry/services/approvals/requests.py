"""What a held call's request says, read off its row: whom it asks, which arguments would run, what
they are bound to.

For everybody who looks at requests; nothing here moves one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.contrib.auth.models import User

from mcpregistry.domain.calls.argument_edits import add_edit_note
from mcpregistry.domain.calls.binding import compute_binding
from mcpregistry.domain.text.canonical import hash_parts
from mcpregistry.extensions import list_extensions
from mcpregistry.models import ApprovalRequest, Message
from mcpregistry.models.conversation import MessageKind


def describe_approvers(request: ApprovalRequest) -> str:
    """ "an approver", "2 approvers", "a member of the group finance", "2 members of the group
    finance"."""
    return name_approvers(request.group.name if request.group else "", request.quorum)


def name_approvers(group: str, number: int) -> str:
    """As ``describe_approvers``, for a group (empty: all approvers) and a number of people."""
    if not group:
        return "an approver" if number == 1 else f"{number} approvers"
    return (
        f"a member of the group {group}"
        if number == 1
        else f"{number} members of the group {group}"
    )


def is_requester(request: ApprovalRequest, user: User) -> bool:
    """Return whether this person asked for the call."""
    return request.call.requester_id is not None and bool(request.call.requester_id == user.pk)


def has_written(request: ApprovalRequest, user: User) -> bool:
    """Return whether this person has written to the agent in the conversation that the call belongs
    to, before people were asked. The agent reads all of it, so each writer may have asked for the
    call, and not only the last one.
    """
    conversation = request.call.conversation_id
    if not conversation:
        return False
    theirs = Message.objects.filter(
        conversation=conversation, kind=MessageKind.IN, author_id=user.pk
    )
    return theirs.filter(created_at__lte=request.asked_at).exists()


def has_steered(request: ApprovalRequest, user: User) -> bool:
    """Return whether this person has steered the run that makes the call."""
    return any(extension.has_steered(request, user) for extension in list_extensions())


def get_current_arguments(request: ApprovalRequest) -> str:
    """The canonical arguments that would run: the edited ones, else those asked for."""
    return request.edited or request.call.arguments


def hash_current_arguments(request: ApprovalRequest) -> str:
    """SHA-256 of the arguments that would run now; what a page shows and a vote names as
    ``seen``."""
    return hash_parts(get_current_arguments(request))


def build_agent_result(request: ApprovalRequest, result: Mapping[str, Any]) -> dict[str, Any]:
    """The server's result as the agent gets it: told what an approver changed, if one did."""
    if not request.edited:
        return dict(result)
    # who edits also votes
    first = request.votes.filter(arguments_hash=hash_current_arguments(request)).first()
    by = first.name if first else "An approver"
    return add_edit_note(
        result, request=request.pk, by=by, asked=request.call.arguments, ran=request.edited
    )


def recompute_binding(request: ApprovalRequest) -> str:
    """What the call is bound to, made anew from what is recorded of it."""
    call = request.call
    return compute_binding(
        agent=call.agent_slug,
        endpoint=call.endpoint_slug,
        server=call.server_slug,
        revision=call.server_revision,
        tool=call.tool_name,
        definition=call.definition_hash,
        arguments=get_current_arguments(request),
        fingerprint=request.rule_fingerprint,
        requester=call.requester_id,
        conversation=call.conversation_id or "",
    )

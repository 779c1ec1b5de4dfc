"""What each list would hold, and what to do so that it does, said where there is nothing in it.

Lists of the admin go by their model, pages beside it by their address' name (and after a "#" a part
of one). All say it by the tag ``nothing`` (``templates/web/nothing.html``), so there is one look
and one place for the words.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from django.http import HttpRequest
from django.urls import reverse
from django.utils.translation import gettext_lazy as _

from controlplane.navigation import AREAS

if TYPE_CHECKING:
    from django_stubs_ext import StrOrPromise


@dataclass(frozen=True, slots=True)
class Empty:
    """``would``: what would be here. ``do``: how it gets there. ``url``, ``label``: the page to do
    it on, by its URL name; where there is none, a list of the admin offers its own form. ``title``:
    where "No <records> yet" would be no English."""

    would: StrOrPromise
    do: StrOrPromise
    url: str = ""
    label: StrOrPromise = ""
    title: StrOrPromise = ""


_ADD_SERVER = ("admin:mcpregistry_server_set_up", _("Add a server"))
_CONNECT = ("connect", _("Connect a host"))
_SERVERS = ("admin:mcpregistry_server_changelist", _("Servers"))
_EXPERTS = ("admin:subagents_experttool_changelist", _("Expert tools"))
_BUDGETS = ("admin:mcpregistry_budget_changelist", _("Budgets"))

LISTS: dict[str, Empty] = {
    # Approvals
    "approvals:queue": Empty(
        _("Calls that wait for a decision because of a rule."),
        _("Nothing to do. Calls appear here when a rule with the decision “ask” matches them."),
        "admin:mcpregistry_policyrule_changelist",
        _("Rules"),
        _("Nothing is waiting"),
    ),
    "approvals:history": Empty(
        _("All calls that waited for a decision, with the decision, the approver and the reason."),
        _("Add a rule with the decision “ask”. Calls that match it wait under Held calls."),
        "admin:mcpregistry_policyrule_changelist",
        _("Rules"),
        _("No calls have been held yet"),
    ),
    "approvals:figures": Empty(
        _(
            "For each rule and each approver: how long calls wait for a decision, and how many of them are decided."
        ),
        _("Choose a longer period, or see the calls that wait now."),
        "approvals:queue",
        _("Held calls"),
        _("No calls were held in this period"),
    ),
    "definitions:inbox": Empty(
        _("Tools and prompts that are new, or whose description differs from the approved one."),
        _("Nothing to do: all definitions are approved. Add a server to get new ones."),
        *_ADD_SERVER,
        _("Nothing is waiting"),
    ),
    "subagents.proposal": Empty(
        _("Changes that the background sub-agent proposes. You apply or decline them."),
        _("Request a new server, a test, a change or a search."),
        "admin:subagents_maintenancerequest_changelist",
        _("Maintenance requests"),
    ),
    "mcpregistry.permit": Empty(
        _(
            "Approvals in advance. Each permit lets one agent call one tool with certain arguments for a limited time."
        ),
        _("Open a held call and choose “Also allow similar calls”."),
        "approvals:queue",
        _("Held calls"),
    ),
    # Servers
    "mcpregistry.server": Empty(
        _(
            "The MCP servers whose tools agents can call, with their launch command or address and their status."
        ),
        _(
            "Paste a command, an address or the configuration file of a host, and follow five steps."
        ),
        *_ADD_SERVER,
    ),
    "mcpregistry.tool": Empty(
        _(
            "All tools, prompts and resources of your servers, and whether their definitions are approved."
        ),
        _("Add a server, confirm its launch, and refresh its tools."),
        *_ADD_SERVER,
        title=_("No tools yet"),
    ),
    "mcpregistry.definition": Empty(
        _("All versions of the definitions of tools."),
        _("Refresh the tools of a server to read its definitions."),
        *_SERVERS,
    ),
    "mcpregistry.registryentry": Empty(
        _("Servers in your registries. You can search them and add a server with a form."),
        _("Add a registry. Its entries appear within a few minutes."),
        "admin:mcpregistry_registrysource_changelist",
        _("Registries"),
    ),
    "mcpregistry.registrysource": Empty(
        _("Registries of MCP servers that this site reads, for example the official registry."),
        _("Add a registry by its address. Then search its entries under “Find servers”."),
    ),
    "mcpregistry.install": Empty(
        _(
            "Packages of servers: the locked versions, who approved them, and whether they are installed."
        ),
        _("Under “Find servers”, choose a server that is available as a package."),
        "admin:mcpregistry_registryentry_changelist",
        _("Find servers"),
    ),
    "mcpregistry.credential": Empty(
        _(
            "Secrets for servers and providers. The scope of each secret states where it can be sent."
        ),
        _(
            "Add a credential, then use its name in the headers or environment of a server. You can also store a secret for one server on the server's page."
        ),
    ),
    "subagents.maintenancerequest": Empty(
        _("Requests from users and agents to the background sub-agent, and their progress."),
        _("Request a new server, a test, a change or a search."),
    ),
    "subagents.trialreport": Empty(
        _("Reports of trials: what a server did in its sandbox, and which access it needed."),
        _("Choose “Start a trial” on the page of a server."),
        *_SERVERS,
    ),
    "mcpregistry.servertest": Empty(
        _("Tests of servers, with each step and its duration."),
        _("Press “Test server” on the page of a server."),
        *_SERVERS,
    ),
    "mcpregistry.serverevent": Empty(
        _("Events of servers: connected, failed, definitions changed, disabled."),
        _("Events appear automatically after a server has been connected."),
        *_ADD_SERVER,
    ),
    "mcpregistry.connection": Empty(
        _("Current connections between the processes of this site and your servers."),
        _("Press “Connect server” on the page of a server, or wait for its first call."),
        *_SERVERS,
    ),
    # Agents
    "mcpregistry.agent": Empty(
        _(
            "The hosts and programs that call tools. Each agent has its own tokens, grants and limits."
        ),
        _("Add an agent, grant it some tools, then connect its host."),
    ),
    "mcpregistry.grant": Empty(
        _(
            "Grants state which servers and tools an agent can use, and what an endpoint lists. Without a "
            "grant, an agent sees no tools."
        ),
        _("Add a grant, or select cells in the table “Who can call what”."),
    ),
    "mcpregistry.token": Empty(
        _("Tokens that agents use over HTTP, with their last use and expiry."),
        _("Press “Issue token” on the page of an agent, or connect a host."),
        *_CONNECT,
    ),
    "mcpregistry.endpoint": Empty(
        _("Addresses for hosts. Each endpoint is one MCP server with the tools that you choose."),
        _("Add an endpoint, for example with the name “default”."),
    ),
    "mcpregistry.workspace": Empty(
        _("Directories, each with the endpoint and agent for hosts that are started there."),
        _("Add a workspace."),
    ),
    "mcpregistry.projectfile": Empty(
        _(
            "Files that declare MCP servers. The site found them in the directories in which hosts were started."
        ),
        _(
            "Start a host with `runmcp --workspace` in a directory that has a file with MCP servers."
        ),
    ),
    "mcpregistry.conversation": Empty(
        _("Conversations of agents, with their messages and calls."),
        _("Agents and hosted agents start them. You can also add one for an agent."),
    ),
    "mcpregistry.hostsession": Empty(
        _("Hosts that are connected now, with their agent and the time of connection."),
        _("Connect a host. It appears here after its first request."),
        *_CONNECT,
    ),
    # Rules and limits
    "mcpregistry.policyrule": Empty(
        _(
            "Rules decide which calls are allowed, which wait for an approval, and which are denied. If no rule matches, the default in the configuration applies."
        ),
        _(
            "Add the starter rules, or your own rule. Begin with tools that delete or send something."
        ),
    ),
    "mcpregistry.budget": Empty(
        _(
            "Each budget limits how much an agent, or all callers of an endpoint, can spend in an hour, day, "
            "week or month."
        ),
        _(
            "Add a budget. At its soft limit, a warning is sent. At its hard limit, calls are refused."
        ),
    ),
    "mcpregistry.budgetentry": Empty(
        _("Amounts that each call spent from a budget."),
        _("Entries appear after the first call that counts toward a budget."),
        *_BUDGETS,
    ),
    "mcpregistry.energypool": Empty(
        _(
            "Amounts of energy that calls use up. A pool refills automatically, and several agents can share a pool."
        ),
        _("Add a pool, then select it on the pages of your agents."),
    ),
    "mcpregistry.energyentry": Empty(
        _("Energy that calls took from pools, and energy that was added to pools."),
        _("Entries appear with the first call of an agent that has a pool."),
        "admin:mcpregistry_energypool_changelist",
        _("Energy pools"),
    ),
    # Expert tools
    "subagents.experttool": Empty(
        _(
            "Tools that answer with the help of a model. Each has its own model, prompt, tools and limits. "
            "Hosts call them like any other tool."
        ),
        _("Add a provider and a model first, then the expert tool."),
    ),
    "subagents.run": Empty(
        _("Executions of expert tools, with their turns, calls, cost and savings."),
        _("A run appears when an expert tool is called."),
        *_EXPERTS,
    ),
    "subagents.headend": Empty(
        _(
            "Interfaces that offer expert tools as models to chat clients and SDKs (OpenAI, Anthropic), or as"
            " a REST service."
        ),
        _("Add a headend: choose the interface, and the endpoint whose expert tools it offers."),
    ),
    "subagents.effortagent": Empty(
        _(
            "A hosted agent is an expert tool that answers messages in conversations. The site runs it."
        ),
        _("Add a hosted agent for an expert tool."),
    ),
    "subagents.languagemodel": Empty(
        _("Models for expert tools, with their limits and prices."),
        _("Add a provider first, then its models."),
    ),
    "subagents.provider": Empty(
        _("Services that run models, with an address and an API key."),
        _("Add a provider, confirm its address, and test it."),
    ),
    # Record
    "mcpregistry.invocation": Empty(
        _("All tool calls, with the decision, the arguments and the result."),
        _("Connect a host and call a tool, or press “Try tool” on the page of a tool."),
        *_CONNECT,
    ),
    "usage:index": Empty(
        _("Number, duration and cost of calls, for each tool, server and agent."),
        _("Choose a longer period, or connect a host and call a tool."),
        *_CONNECT,
        _("No calls in this period"),
    ),
    "usage:index#expert": Empty(
        _("Number, duration and cost of runs, for each expert tool."),
        _("Choose a longer period, or call an expert tool."),
        *_EXPERTS,
        _("No expert tool was called in this period"),
    ),
    "usage:failures": Empty(
        _("Failed calls with their error, grouped by similar errors."),
        _("Nothing to do. You can choose a longer period."),
        title=_("No calls failed in this period"),
    ),
    "mcpregistry.auditentry": Empty(
        _("All changes and decisions, with time and user, as a signed chain."),
        _(
            "Entries appear automatically. To check entries that were moved to an archive, run `manage.py audit verify --archive`."
        ),
        title=_("No entries yet"),
    ),
    "history-site": Empty(
        _("All changes to the configuration, as versions that you can restore."),
        _("Change a setting. The change then appears here."),
        title=_("No changes yet"),
    ),
    # Site
    "auth.user": Empty(
        _("The users who can log in. Each has a role."),
        _("Invite a person with a link, or add a user here."),
    ),
    "mcpregistry.invitation": Empty(
        _("Links with which new users create their own account. Each has a role and an expiry."),
        _("Add an invitation and send its link."),
    ),
    "auth.group": Empty(
        _(
            "Groups of users. A rule can name a group whose members decide. The four roles are groups as well."
        ),
        _("Add a group. If the four roles are missing, run `manage.py migrate` to restore them."),
    ),
    "mcpregistry.channel": Empty(
        _(
            "Channels for notifications, for example about held calls and failed servers: e-mail, Slack or a webhook."
        ),
        _("Add a channel and send a test message."),
    ),
    "mcpregistry.delivery": Empty(
        _("Notifications that were sent or are waiting, with their state."),
        _("Add a channel first."),
        "admin:mcpregistry_channel_changelist",
        _("Channels"),
    ),
    "mcpregistry.slackidentity": Empty(
        _("Slack members who can decide on calls in Slack, each with their account on this site."),
        _("Add a member with the member ID that Slack shows in their profile."),
    ),
    "mcpregistry.configuration": Empty(
        _("The settings of the site."),
        _("Run `manage.py migrate`, then reload this page."),
        title=_("There are no settings"),
    ),
}


def may_open(url: str, request: HttpRequest) -> str:
    """The address of a page by its URL name; "" where this person may not open it. Called by the
    tag ``nothing``."""
    pages = (page for area in AREAS for page in area.pages)
    page = next((page for page in pages if page.url == url), None)
    return reverse(url) if page is not None and page.opens(request) else ""

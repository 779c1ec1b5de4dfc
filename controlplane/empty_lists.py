"""What each list would hold, and what to do so that it does, said where there is nothing in it.

Lists of the admin go by their model, pages beside it by their address' name (and after a "#" a part of one). All say it by the tag ``nothing``
(``templates/web/nothing.html``), so there is one look and one place for the words.
"""

from __future__ import annotations

from dataclasses import dataclass

from django.http import HttpRequest
from django.urls import reverse

from controlplane.navigation import AREAS


@dataclass(frozen=True, slots=True)
class Empty:
    """``would``: what would be here. ``do``: how it gets there. ``url``, ``label``: the page to do it on, by its URL name;
    where there is none, a list of the admin offers its own form. ``title``: where "No <records> yet" would be no English."""

    would: str
    do: str
    url: str = ""
    label: str = ""
    title: str = ""


_ADD_SERVER = ("admin:mcpregistry_server_set_up", "Add a server")
_CONNECT = ("connect", "Connect a host")
_SERVERS = ("admin:mcpregistry_server_changelist", "Servers")
_EXPERTS = ("admin:subagents_experttool_changelist", "Expert tools")
_BUDGETS = ("admin:mcpregistry_budget_changelist", "Budgets")

LISTS: dict[str, Empty] = {
    # Approvals
    "approvals:queue": Empty(
        "Calls that wait for a decision because of a rule.",
        "Nothing to do. New calls appear here automatically, if a rule with the outcome “ask” matches them.",
        "admin:mcpregistry_policyrule_changelist", "Rules", "Nothing waits",
    ),
    "approvals:history": Empty(
        "All calls that waited for a decision, with the decision, who made it, and why.",
        "Add a rule with the outcome “ask”. Its calls wait under Held calls.",
        "admin:mcpregistry_policyrule_changelist", "Rules", "No call was held yet",
    ),
    "approvals:figures": Empty(
        "How long calls wait for a decision, and how many of them each approver decides, by rule.",
        "Choose a longer period, or see the calls that wait now.", "approvals:queue", "Held calls", "No call was held in this time",
    ),
    "definitions:inbox": Empty(
        "Tools and prompts that are new, or whose description differs from the approved one.",
        "Nothing to do: all definitions are approved. Add a server to get new ones.",
        *_ADD_SERVER, "Nothing waits",
    ),
    "subagents.proposal": Empty(
        "Changes that the background sub-agent proposes. You apply or decline them.",
        "Request a new server, a test, a change or a search.",
        "admin:subagents_maintenancerequest_changelist", "Requests to the sub-agent",
    ),
    "mcpregistry.permit": Empty(
        "Approvals in advance: one agent may call one tool, with certain arguments, for a limited time.",
        "Open a held call and choose “Also allow similar calls”.", "approvals:queue", "Held calls",
    ),
    # Servers
    "mcpregistry.server": Empty(
        "The MCP servers whose tools agents can call, with their launch and their state.",
        "Paste a command, an address or the configuration file of a host, and follow five steps.", *_ADD_SERVER,
    ),
    "mcpregistry.tool": Empty(
        "All tools, prompts and resources of your servers, and whether their definitions are approved.",
        "Add a server, confirm its launch, and refresh its tools.", *_ADD_SERVER, title="No tools yet",
    ),
    "mcpregistry.definition": Empty(
        "All versions of the definitions of tools.", "Refresh the tools of a server to read its definitions.", *_SERVERS,
    ),
    "mcpregistry.registryentry": Empty(
        "Servers in your registries. You can search them and add a server with a form.",
        "Add a registry. Its entries appear within a few minutes.", "admin:mcpregistry_registrysource_changelist", "Registries",
    ),
    "mcpregistry.registrysource": Empty(
        "Registries of MCP servers that this site reads, for example the official registry.",
        "Add a registry by its address. Then search its entries under “Find servers”.",
    ),
    "mcpregistry.install": Empty(
        "Packages of servers: the locked versions, who approved them, and whether they are installed.",
        "Under “Find servers”, choose a server that is available as a package.", "admin:mcpregistry_registryentry_changelist", "Find servers",
    ),
    "mcpregistry.credential": Empty(
        "Secrets for servers and providers, each with a list of where it may be sent.",
        "Add a credential, then use its name in the headers or environment of a server. You can also store a secret "
        "for one server on the server's page.",
    ),
    "subagents.maintenancerequest": Empty(
        "Requests of people and agents to the background sub-agent, and their progress.",
        "Request a new server, a test, a change or a search.",
    ),
    "subagents.trialreport": Empty(
        "Reports on servers that were tried in the sandbox: what they did and what they needed.",
        "Press “Try in the sandbox” on the page of a server.", *_SERVERS,
    ),
    "mcpregistry.servertest": Empty(
        "Tests of servers, with each step and its duration.", "Press “Test now” on the page of a server.", *_SERVERS,
    ),
    "mcpregistry.serverevent": Empty(
        "Events of servers: connected, failed, definitions changed, disabled.",
        "Events appear automatically after a server has been connected.", *_ADD_SERVER,
    ),
    "mcpregistry.connection": Empty(
        "Current connections between the processes of this site and your servers.",
        "Press “Connect” on the page of a server, or wait for its first call.", *_SERVERS,
    ),
    # Agents
    "mcpregistry.agent": Empty(
        "The hosts and programs that call tools. Each agent has its own tokens, grants and limits.",
        "Add an agent, grant it some tools, then connect its host.",
    ),
    "mcpregistry.grant": Empty(
        "Which agent may use which servers and tools, and what an endpoint lists. Without a grant, an agent sees no "
        "tools.",
        "Add a grant, or select cells in the table “Who can call what”.",
    ),
    "mcpregistry.token": Empty(
        "Tokens with which agents log in over HTTP, with their last use and expiry.",
        "Press “Issue token” on the page of an agent, or connect a host.", *_CONNECT,
    ),
    "mcpregistry.endpoint": Empty(
        "Addresses for hosts. Each endpoint is one MCP server with the tools that you choose.",
        "Add an endpoint, for example with the name “default”.",
    ),
    "mcpregistry.workspace": Empty(
        "Project folders, with the endpoint and agent for hosts that are started there.", "Add a project folder.",
    ),
    "mcpregistry.projectfile": Empty(
        "Configuration files of directories in which hosts were started, with who has confirmed them.",
        "Start a host with runmcp --workspace in a directory that has a file with MCP servers.",
    ),
    "mcpregistry.conversation": Empty(
        "Conversations of agents, with their messages and calls.",
        "Agents and hosted agents start them. You can also add one for an agent.",
    ),
    "mcpregistry.hostsession": Empty(
        "Hosts that are connected now, with their agent and the time of connection.", "Connect a host. It appears "
        "here after its first request.",
        *_CONNECT,
    ),
    # Rules and limits
    "mcpregistry.policyrule": Empty(
        "Rules decide which calls are allowed, which wait for an approval, and which are denied. If no rule matches, "
        "the default in the configuration applies.",
        "Add the starter rules, or your own rule. Begin with tools that delete or send something.",
    ),
    "mcpregistry.budget": Empty(
        "Limits on what an agent, or all callers of an endpoint, may spend in an hour, day, week or month.",
        "Add a budget: its soft limit warns, its hard limit stops further calls.",
    ),
    "mcpregistry.budgetentry": Empty(
        "Amounts that were spent, for each call.", "Entries appear with the first call that a budget counts.", *_BUDGETS,
    ),
    "mcpregistry.energypool": Empty(
        "Energy that calls of agents use up. A pool refills automatically, and agents can share it.",
        "Add a pool, then select it on the pages of your agents.",
    ),
    "mcpregistry.energyentry": Empty(
        "Energy that was used from pools or added to them.", "Entries appear with the first call of an agent that "
        "has a pool.",
        "admin:mcpregistry_energypool_changelist", "Energy pools",
    ),
    # Expert tools
    "subagents.experttool": Empty(
        "Tools that a model answers, with its own prompt, tools and limits. Hosts call them like any other tool.",
        "Add a provider and a model first, then the expert tool.",
    ),
    "subagents.run": Empty(
        "Executions of expert tools, with their turns, calls, cost and savings.", "A run appears when an expert tool "
        "is called.",
        *_EXPERTS,
    ),
    "subagents.headend": Empty(
        "Expert tools as models for chat clients and SDKs (OpenAI, Anthropic), or as a REST service.",
        "Add a headend: choose the interface, and the endpoint whose expert tools it offers.",
    ),
    "subagents.effortagent": Empty(
        "A hosted agent is an expert tool that answers messages in conversations. The site runs it.",
        "Add a hosted agent for an expert tool.",
    ),
    "subagents.languagemodel": Empty(
        "Models for expert tools, with their limits and prices.", "Add a provider first, then its models.",
    ),
    "subagents.provider": Empty(
        "Services that run models, with an address and an API key.", "Add a provider, confirm its address, and test "
        "it.",
    ),
    # Record
    "mcpregistry.invocation": Empty(
        "All calls of tools, with the decision, the arguments and the result.",
        "Connect a host and call a tool, or press “Try it” on the page of a tool.", *_CONNECT,
    ),
    "usage:index": Empty(
        "Number, duration and cost of calls, for each tool, server and agent.",
        "Choose a longer period, or connect a host and call a tool.", *_CONNECT, "No calls in this time",
    ),
    "usage:index#expert": Empty(
        "Number, duration and cost of runs, for each expert tool.",
        "Choose a longer period, or call an expert tool.", *_EXPERTS, "No expert tool was called in this time",
    ),
    "usage:failures": Empty(
        "Failed calls with their error, grouped by similar errors.",
        "Nothing to do. You can choose a longer period.", title="No call has failed in this time",
    ),
    "mcpregistry.auditentry": Empty(
        "All changes and decisions, with time and person, in signed order.",
        "Entries appear automatically. `manage.py audit` reads those that retention has moved into files.", title="No entries yet",
    ),
    "history-site": Empty(
        "All changes of the configuration, as versions that you can restore.", "Change a setting. The change then "
        "appears here.",
        title="No change yet",
    ),
    # Site
    "auth.user": Empty(
        "People who can log in, each with a role.", "Invite a person by a link, or add an account here.",
    ),
    "mcpregistry.invitation": Empty(
        "Links with which people create their own account. Each has a role and an expiry.",
        "Add an invitation and send its link.",
    ),
    "auth.group": Empty(
        "Groups of people. A rule can name a group whose members decide. The four roles are groups as well.",
        "Add a group. `manage.py migrate` restores the four roles.",
    ),
    "mcpregistry.channel": Empty(
        "Channels for notifications, for example about waiting calls and failed servers: e-mail, Slack or a webhook.",
        "Add a channel and send a test message.",
    ),
    "mcpregistry.delivery": Empty(
        "Notifications that were sent or are waiting, with their state.", "Add a channel first.",
        "admin:mcpregistry_channel_changelist", "Channels",
    ),
    "mcpregistry.slackidentity": Empty(
        "Slack members who can decide on calls in Slack, each with their account on this site.",
        "Add a person with their member ID, which Slack shows in their profile.",
    ),
    "mcpregistry.configuration": Empty(
        "The settings of the site.", "Run `manage.py migrate`, then reload this page.", title="There are no settings",
    ),
}  # fmt: skip


def may_open(url: str, request: HttpRequest) -> str:
    """The address of a page by its URL name; "" where this person may not open it. Called by the tag ``nothing``."""
    page = next((page for area in AREAS for page in area.pages if page.url == url), None)
    return reverse(url) if page is not None and page.opens(request) else ""

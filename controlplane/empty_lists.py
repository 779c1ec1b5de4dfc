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
        "Calls that a policy rule holds until a person has decided.",
        "They appear by themselves. A rule whose effect is “ask” holds calls.",
        "admin:mcpregistry_policyrule_changelist", "Rules", "Nothing waits",
    ),
    "approvals:history": Empty(
        "Every call that was held, how it ended, and who decided why.",
        "A rule whose effect is “ask” holds calls; they wait under Held calls.",
        "admin:mcpregistry_policyrule_changelist", "Rules", "No call was held yet",
    ),
    "approvals:figures": Empty(
        "How long held calls wait, and who decides how many of them, rule by rule.",
        "Choose a longer time, or look at the calls that wait now.", "approvals:queue", "Held calls", "No call was held in this time",
    ),
    "definitions:inbox": Empty(
        "Tools and prompts that a server offers anew or describes otherwise than was approved.",
        "Nothing to do: what servers offer is as it was approved. The next definitions come with another server.",
        *_ADD_SERVER, "Nothing waits",
    ),
    "subagents.proposal": Empty(
        "Changes that the background sub-agent has prepared and a person decides.",
        "Ask it to add, test, change or search for a server.",
        "admin:subagents_maintenancerequest_changelist", "Requests to the sub-agent",
    ),
    "mcpregistry.permit": Empty(
        "Approvals given ahead: one agent, one tool, these arguments, for a time.",
        "Give one while deciding on a held call: “Also allow similar calls”.", "approvals:queue", "Held calls",
    ),
    # Servers
    "mcpregistry.server": Empty(
        "The MCP servers whose tools agents may call: how each is started or reached, and how it does.",
        "Paste a command, an address or the file of a host; the rest is five steps.", *_ADD_SERVER,
    ),
    "mcpregistry.tool": Empty(
        "Every tool, prompt and resource that your servers offer, and whether its definition is approved.",
        "They come with servers: add one, confirm how it starts, and refresh its tools.", *_ADD_SERVER, title="No tools yet",
    ),
    "mcpregistry.definition": Empty(
        "Every version of what a server says of a tool.", "They come with servers, when these are read.", *_SERVERS,
    ),
    "mcpregistry.registryentry": Empty(
        "Servers that a registry lists, to be searched and added with a form.",
        "Add a registry; its entries are read within minutes.", "admin:mcpregistry_registrysource_changelist", "Registries",
    ),
    "mcpregistry.registrysource": Empty(
        "Registries of MCP servers that this site reads, such as the official one.",
        "Add one by its address; “Find servers” then searches its entries.",
    ),
    "mcpregistry.install": Empty(
        "Packages of servers: what was locked, approved and installed, and by whom.",
        "Choose a server under “Find servers” that comes as a package.", "admin:mcpregistry_registryentry_changelist", "Find servers",
    ),
    "mcpregistry.credential": Empty(
        "Secrets that several servers share, each with the places that it may be sent to.",
        "Add one here; a server names it in its headers or environment. Secrets of one server alone stand on its own page.",
    ),
    "subagents.maintenancerequest": Empty(
        "What people and agents have asked of the background sub-agent, and how far it has come.",
        "Ask it to add, test, change or search for a server.",
    ),
    "subagents.trialreport": Empty(
        "What a server needed and did when it was tried in the sandbox, before anybody trusts it.",
        "Press “Try it” on the page of a server, or ask the sub-agent to test one.", *_SERVERS,
    ),
    "mcpregistry.servertest": Empty(
        "Each test of a server, step by step, with what it took.", "Press “Test now” on the page of a server.", *_SERVERS,
    ),
    "mcpregistry.serverevent": Empty(
        "When a server came up, failed, changed what it offers, or was switched off.",
        "They come by themselves as soon as a server is connected.", *_ADD_SERVER,
    ),
    "mcpregistry.connection": Empty(
        "Which process of this site is connected with which server now.",
        "The first call connects, or “Refresh tools” on the page of a server.", *_SERVERS,
    ),
    # Agents
    "mcpregistry.agent": Empty(
        "Who calls: each host or program is an agent, with its tokens, grants and limits.",
        "Add one, grant it some tools, then connect its host.",
    ),
    "mcpregistry.grant": Empty(
        "Which agent may use which server or tool, and what an endpoint lists. Without a grant nobody sees anything.",
        "Add one, or tick cells of the table “Who can call what”.",
    ),
    "mcpregistry.token": Empty(
        "The tokens by which agents come over HTTP: when each was last used, and when it ends.",
        "Press “Issue token” on the page of an agent, or connect a host, which makes one.", *_CONNECT,
    ),
    "mcpregistry.endpoint": Empty(
        "What hosts connect to: one MCP server each, made of the tools that you choose.",
        "Add one; “default” is a good first name.",
    ),
    "mcpregistry.workspace": Empty(
        "Folders of projects: which endpoint and agent a host gets that is started in one.", "Add the folder of a project.",
    ),
    "mcpregistry.conversation": Empty(
        "Which calls of an agent belong together, and what was written in them.",
        "Agents and hosted agents start them. You can also add one for an agent.",
    ),
    "mcpregistry.hostsession": Empty(
        "Hosts that are connected now: which program, as which agent, since when.", "Connect one; it appears with its first request.",
        *_CONNECT,
    ),
    # Rules and limits
    "mcpregistry.policyrule": Empty(
        "Which calls run at once, which wait for a person, and which are refused. What no rule speaks about is decided by the configuration.",
        "Add the starter rules, or a rule of your own: first for the tools that delete or send something.",
    ),
    "mcpregistry.budget": Empty(
        "What an agent, or what comes by an endpoint, may spend in an hour, a day or a month.",
        "Add one to be told at a soft mark and to stop at a hard one.",
    ),
    "mcpregistry.budgetentry": Empty(
        "What was spent of budgets, call by call.", "They come with calls, once there is a budget.", *_BUDGETS,
    ),
    "mcpregistry.energypool": Empty(
        "Energy that agents share, that their calls draw on and that refills by itself.",
        "Add one, then choose it on the pages of agents.",
    ),
    "mcpregistry.energyentry": Empty(
        "What was taken of energy pools, and given.", "They come with calls of agents that have a pool.",
        "admin:mcpregistry_energypool_changelist", "Energy pools",
    ),
    # Expert tools
    "subagents.experttool": Empty(
        "Tools that are a model with a task, a list of other tools and limits: a host calls them as any tool.",
        "Add a provider and a model first, then the tool.",
    ),
    "subagents.run": Empty(
        "Each execution of an expert tool: its turns, its calls, what it cost and saved.", "They come when an expert tool is called.",
        *_EXPERTS,
    ),
    "subagents.headend": Empty(
        "Expert tools as models for chat clients and SDKs (OpenAI, Anthropic), or as a REST service.",
        "Add one: choose the interface and the endpoint whose expert tools it offers.",
    ),
    "subagents.effortagent": Empty(
        "A hosted agent is an expert tool that answers messages in conversations. The site runs it.",
        "Add one for an expert tool.",
    ),
    "subagents.languagemodel": Empty(
        "The models that expert tools may ask, with their limits and prices.", "Add a provider, then its models.",
    ),
    "subagents.provider": Empty(
        "Where models are asked: an address and a key.", "Add one, confirm where its key goes, and test it.",
    ),
    # Record
    "mcpregistry.invocation": Empty(
        "Every call: what was asked, decided, sent and answered.",
        "They appear as soon as a connected host calls a tool, or somebody tries one from its page.", *_CONNECT,
    ),
    "usage:index": Empty(
        "How often each tool, server and agent was called, how long it took and what it cost.",
        "Calls appear as soon as a connected host calls a tool; a longer period may have some.", *_CONNECT, "No calls in this time",
    ),
    "usage:index#expert": Empty(
        "How often each expert tool was called, how long it took and what it cost.",
        "They come when a host calls an expert tool; a longer period may have some.", *_EXPERTS, "No expert tool was called in this time",
    ),
    "usage:failures": Empty(
        "Calls that failed, alike ones together, with the text of the error.",
        "Nothing to do. A longer period may have some.", title="No call has failed in this time",
    ),
    "mcpregistry.auditentry": Empty(
        "Who did what and when, signed and in order.",
        "Entries come by themselves; `manage.py audit` reads those that retention has moved into files.", title="No entries yet",
    ),
    "history-site": Empty(
        "Every change of what is configured, as a version that can be put back.", "Change something; its version stands here.",
        title="No change yet",
    ),
    # Site
    "auth.user": Empty(
        "The people who may log in, each with a role.", "Invite them by a link, or add them here.",
    ),
    "mcpregistry.invitation": Empty(
        "Links by which people make their own account, with a role and an end.", "Invite somebody: nobody has to send a password.",
    ),
    "auth.group": Empty(
        "Groups of people, for rules that only some may decide on. The four roles are groups as well.",
        "Add one; `manage.py migrate` makes the four roles anew.",
    ),
    "mcpregistry.channel": Empty(
        "Where people are told that a call waits or a server is down: mail, Slack, or an address of yours.", "Add one and send a test.",
    ),
    "mcpregistry.delivery": Empty(
        "Each message that was sent or is to be sent, with what came of it.", "They come with channels.",
        "admin:mcpregistry_channel_changelist", "Channels",
    ),
    "mcpregistry.slackidentity": Empty(
        "Which member of Slack is which person here, so that they can decide there.",
        "Add one with the member's id, which Slack shows on their profile.",
    ),
    "mcpregistry.configuration": Empty(
        "The settings of the site.", "`manage.py migrate` makes them; then reload this page.", title="There are no settings",
    ),
}  # fmt: skip


def may_open(url: str, request: HttpRequest) -> str:
    """The address of a page by its URL name; "" where this person may not open it. Called by the tag ``nothing``."""
    page = next((page for area in AREAS for page in area.pages if page.url == url), None)
    return reverse(url) if page is not None and page.opens(request) else ""

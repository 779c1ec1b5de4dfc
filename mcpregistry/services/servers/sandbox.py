"""The sandbox of a server: checked, resolved to real places at the moment of starting, and said in words.

Invariant: no path of a policy opens this site's own data, neither as it is written nor behind a link.
"""

from __future__ import annotations

import os

from django.conf import settings

from mcpregistry.domain.servers.sandbox import Policy, Protection, check_paths, protection
from mcpregistry.domain.servers.target import Sandbox
from mcpregistry.downstream.transports import confinement
from mcpregistry.models import Server, ServerTest
from mcpregistry.models.server import SandboxMode, Transport


def check_sandbox(server: Server) -> None:
    """Raises ConfigInvalid for paths that are none, or that hold this site's data."""
    private = tuple({str(settings.VAR_DIR), os.path.realpath(settings.VAR_DIR)})
    for paths in (server.sandbox_read, server.sandbox_write):
        check_paths(paths, private)
        check_paths([os.path.realpath(path) for path in paths], private)


def sandbox_of(server: Server, *, forced: bool = False) -> Sandbox | None:
    """As it is to be applied now; ``forced`` also where it is off, to try it. Raises ConfigInvalid as ``check_sandbox``."""
    policy = server.sandbox_policy()
    if server.transport != Transport.STDIO or not (policy.enforced or forced):
        return None
    check_sandbox(server)
    home = os.path.join(settings.VAR_DIR, "servers", str(server.uid))
    return Sandbox(home=home, read=policy.read, write=policy.write, network=policy.network)


def protection_of(server: Server) -> Protection | None:
    """What is enforced of a local server on the machine of this process; None for a remote one."""
    if server.transport != Transport.STDIO:
        return None
    return protection(server.sandbox_policy(), abi=confinement.abi(), filtered=confinement.filtered())


def protection_here() -> Protection:
    """What this machine can do for any local server whose sandbox is on; for ``doctor``."""
    return protection(Policy(enforced=True), abi=confinement.abi(), filtered=confinement.filtered())


def unconfined() -> list[str]:
    """Short names of local servers that run with the rights of this site."""
    rows = Server.objects.active().filter(transport=Transport.STDIO).exclude(sandbox=SandboxMode.ENFORCE)
    return [*rows.values_list("slug", flat=True)]


def tried(server: Server) -> bool:
    """Whether its last test in the sandbox passed, and nothing of its launch has changed since."""
    test = server.tests.filter(in_sandbox=True).first()
    return test is not None and test.verdict == ServerTest.Verdict.PASSED and test.server_revision == server.revision

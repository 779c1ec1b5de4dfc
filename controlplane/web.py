"""One web process of an embedded site: serves a socket that ``manage.py up`` holds.

The supervisor binds the address itself, so a taken port is reported before anything starts, several
processes share it, and a restart refuses nobody. Elsewhere any ASGI server runs
``controlplane.asgi:application``.
"""

from __future__ import annotations

import argparse
import os
import socket
from typing import TYPE_CHECKING, Any

from mcpregistry.garbage_collection import freeze_afterwards

if TYPE_CHECKING:
    import uvicorn

# Seconds that an unused connection stays. Hosts and proxies close theirs first, after 4 to 60: were
# it about as long here, a request could meet a connection that is just being closed, and a host
# that loses a call does not send it again.
KEPT = 75
# seconds for answers to leave once the last calls were cut; listen streams end at once
AFTER_GRACE = 5


def main() -> None:
    """Entry point of ``python -m controlplane.web``: wait for the gate, then serve until
    SIGTERM."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fd", type=int, required=True, help="Descriptor of the listening socket.")
    parser.add_argument(
        "--gate", type=int, help="Descriptor to wait on. It closes when the database is migrated."
    )
    options = parser.parse_args()

    with freeze_afterwards():
        import uvicorn

        from controlplane.asgi import application

    if options.gate is not None:
        os.read(options.gate, 1)
        os.close(options.gate)
    uvicorn.Server(config_for(application)).run(sockets=[socket.socket(fileno=options.fd)])


def config_for(application: Any) -> uvicorn.Config:
    """How an ASGI application of ours is served."""
    import uvicorn
    from django.conf import settings

    from controlplane.connection_limits import BoundedProtocol, PatientWebSocket

    # uvicorn's default believes whatever comes from this machine, which a local server does, too.
    trusted = os.environ.get("FORWARDED_ALLOW_IPS", "")
    return uvicorn.Config(
        application,
        lifespan="on",
        proxy_headers=bool(trusted),
        forwarded_allow_ips=trusted,
        http=BoundedProtocol,
        ws=PatientWebSocket,
        ws_max_size=settings.DATA_UPLOAD_MAX_MEMORY_SIZE,
        ws_per_message_deflate=False,  # nothing to inflate, so no bombs
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=KEPT,
        timeout_graceful_shutdown=round(settings.GRACE_SECONDS) + AFTER_GRACE,
    )


if __name__ == "__main__":
    main()

"""Python imports this at the start of each agent: a connection to anything but loopback is noted and fails."""

from __future__ import annotations

import os
import sys
from pathlib import Path

_HERE = ("127.", "::1", "localhost", "0.0.0.0", "None")


def _refuse(event: str, args: tuple[object, ...]) -> None:
    if event == "socket.connect":
        host = args[1][0] if isinstance(args[1], tuple) else "localhost"  # a unix socket
    elif event == "socket.getaddrinfo":
        host = args[0]
    else:
        return
    name = host.decode() if isinstance(host, bytes) else str(host)
    if not name.startswith(_HERE):
        with Path(os.environ["AGENT_FOLDER"], "network.txt").open("a") as noted:
            noted.write(f"{name}\n")
        raise OSError(f"this agent reached for {name!r}")


sys.addaudithook(_refuse)

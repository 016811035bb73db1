"""What runs inside a worker of a cluster: it passes requests on to a process of its own, and answers back.

The process is there since those of subjects are forks, and a cluster's worker has threads, which forks don't bear.
Bytes are passed on as they are, so that a worker need not import torch.
"""

import os
import socket
import subprocess
import sys
from multiprocessing.connection import Connection
from typing import Final

SERVE: Final = "from fuzz.outpost import serve; serve({})"
OUTPOSTS: Final[dict[bytes, "Sentry"]] = {}
"""By order, the processes that stay for the next request."""


def relay(order: bytes, request: bytes) -> bytes:
    """Have the outpost for an order answer a request.

    Raises:
        ConnectionError: it has ended.
    """
    outpost = OUTPOSTS.get(order) or OUTPOSTS.setdefault(order, Sentry(order))
    try:
        outpost.connection.send_bytes(request)
        return outpost.connection.recv_bytes()
    except (EOFError, OSError):
        del OUTPOSTS[order]
        outpost.end()
        raise ConnectionError("an outpost has ended") from None


class Sentry:
    """An outpost's process, as seen from here; it ends when the connection does."""

    def __init__(self, order: bytes) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-c", SERVE.format(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )
        self.connection = Connection(ours.detach())
        self.connection.send_bytes(order)

    def end(self) -> None:
        """Have it end, and wait for that."""
        self.connection.close()
        self.process.wait()

"""Who sent a message: the headers by which ServiceControl and ServicePulse know an endpoint."""

from __future__ import annotations

import hashlib
import socket
from dataclasses import dataclass

UNNAMED = "Spark"  # where neither the query nor the application has a name that we know


@dataclass(frozen=True, kw_only=True, slots=True)
class SentBy:
    """
    The sender of a write. The driver makes it, so that each attempt of a task writes the same.

    A host id is 32 hexadecimal digits, as endpoints write it (seen with NServiceBus 10.2). Theirs
    is a hash of the program's path and the machine, ours of the sender's name and the machine.
    """

    endpoint: str
    machine: str
    host_id: str

    @classmethod
    def here(cls, endpoint: str | None) -> SentBy:
        """Return the sender of this name on this machine."""
        name, machine = endpoint or UNNAMED, socket.gethostname()
        digest = hashlib.sha256(f"{name}\0{machine}".encode()).hexdigest()
        return cls(endpoint=name, machine=machine, host_id=digest[:32])

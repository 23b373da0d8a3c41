"""
Help for tests of pipelines: a private PostgreSQL, queues, messages, and frames of messages.

The fixtures are in plugin.py, a plugin of pytest. Every run of pytest on a machine with sqlq_spark
loads the plugin, and with it this package. So this package imports its modules only when a test
uses them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sqlq_spark.testing.queues import Database, Message, Queue, frame, new_database, server

__all__ = ["Database", "Message", "Queue", "frame", "new_database", "server"]


def __getattr__(name: str) -> Any:  # noqa: ANN401 - classes and functions
    """Import a public name from `queues` when it is first used."""
    if name in __all__:
        return getattr(import_module(f"{__name__}.queues"), name)
    message = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(message)

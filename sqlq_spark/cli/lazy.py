"""
Imports modules when they are first used.

`--help`, `--version` and each completion of a shell run no command. They need neither pyarrow nor
numpy, whose import takes longer than Python and typer together.
"""

from __future__ import annotations

import sys
from importlib import util

# what the commands use, and `--help` does not; modules only, because a submodule of a package that
# is executed late would be executed twice
LATER = (
    *(f"sqlq_spark.admin.{name}" for name in ("checks", "failed_messages", "inspect", "purge")),
    *(f"sqlq_spark.admin.{name}" for name in ("queue_tables", "receipt_messages")),
    *(f"sqlq_spark.admin.{name}" for name in ("report", "retire", "return_to_source")),
    *(f"sqlq_spark.admin.{name}" for name in ("subscribers", "watch")),
    "sqlq_spark.admin.page.report",
    "sqlq_spark.receive.receipts",
    "sqlq_spark.send.subscriptions",
    *(f"sqlq_spark.cli.{name}" for name in ("lines", "sending")),
    *(f"sqlq_spark.cli.screens.{name}" for name in ("demo", "progress", "watch")),
)


def import_later(name: str) -> None:
    """
    Let `from package import module` return a module that is executed at its first use.

    A name of the module that is imported from it counts as a use.
    """
    if name in sys.modules:
        return
    spec = util.find_spec(name)
    if spec is None or spec.loader is None:
        raise ModuleNotFoundError(name)
    spec.loader = util.LazyLoader(spec.loader)
    module = util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    package, _, own = name.rpartition(".")
    setattr(sys.modules[package], own, module)

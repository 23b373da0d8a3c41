"""
A PostgreSQL with German messages, from the system's packages. The embedded one has English.

Debian has it in the packages `postgresql` and `locales`. `.ci/run` installs them if they are
missing.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from unittest.mock import patch

from sqlq_spark.testing import embedded

if TYPE_CHECKING:
    from collections.abc import Iterator

LOCALE = "de_DE.UTF-8"


def find_programs() -> Path | None:
    """Return the folder of the programs of the newest server that has German messages."""
    texts = Path("/usr/share/locale/de/LC_MESSAGES")
    found = [
        folder
        for folder in Path("/usr/lib/postgresql").glob("*/bin")
        if (folder / "postgres").exists() and (texts / f"postgres-{folder.parent.name}.mo").exists()
    ]
    has_locales = shutil.which("localedef") and Path("/usr/share/i18n/locales/de_DE").exists()
    return max(found, key=lambda folder: int(folder.parent.name)) if found and has_locales else None


@contextmanager
def german_server(programs: Path) -> Iterator[str]:
    """Give the url of its superuser and of an empty database; the system's locales stay."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        subprocess.run(
            ["localedef", "-i", "de_DE", "-f", "UTF-8", f"{folder}/{LOCALE}"], check=True
        )

        class German(embedded.Server):
            def _run(self, program: str, *words: str, **environ: str) -> None:
                super()._run(program, *words, LOCPATH=folder, **environ)

        settings = embedded._settings() | {"lc_messages": LOCALE}  # noqa: SLF001
        with (
            patch.multiple(
                embedded, Server=German, _programs=lambda: programs, _settings=lambda: settings
            ),
            embedded.run_server(tcp=True) as made,
        ):
            yield made.url

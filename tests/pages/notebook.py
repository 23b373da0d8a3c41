"""`python -m tests.pages.notebook` runs the notebook of ten minutes and stores what it prints."""

from __future__ import annotations

import sys
import tempfile
from typing import Any

import nbformat
from nbclient import NotebookClient
from traitlets.config import Config

from .page import ROOT

NOTEBOOK = ROOT / "docs" / "notebooks" / "ten_minutes.ipynb"
PATIENCE = 600  # seconds for the start, and for a cell


def stored() -> Any:
    """The notebook as it is in the repository."""
    return nbformat.read(NOTEBOOK, as_version=4)  # type: ignore[no-untyped-call]


def executed() -> Any:
    """The notebook with the outputs of a run."""
    notebook = stored()
    with tempfile.TemporaryDirectory() as folder:  # a short path for sockets, and no port
        manager = {"transport": "ipc", "ip": f"{folder}/kernel"}
        NotebookClient(
            notebook,
            timeout=PATIENCE,
            startup_timeout=PATIENCE,
            resources={"metadata": {"path": folder}},
            record_timing=False,
            config=Config({"KernelManager": manager}),
        ).execute()
    for cell in notebook.cells:
        if cell.cell_type == "code":
            # the JVM's warnings differ from machine to machine
            cell.outputs = [each for each in cell.outputs if each.get("name") != "stderr"]
            for counted in (cell, *(each for each in cell.outputs if "execution_count" in each)):
                counted.execution_count = None
    return notebook


def printed(notebook: Any) -> list[str]:
    """What each output shows as text."""
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    return [str(each.get("text") or each.data["text/plain"]) for each in outputs]


if __name__ == "__main__":
    done = executed()
    done.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    nbformat.write(done, NOTEBOOK)  # type: ignore[no-untyped-call]
    sys.stdout.write("\n".join(printed(done)) + "\n")

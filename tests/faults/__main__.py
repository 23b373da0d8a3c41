"""
`python -m tests.faults --minutes 5`: harm streams, count their messages, print figures.

Whatever is lost or repeated makes it fail, with a folder of evidence.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
import time
from pathlib import Path

from .chaos import rounds


def main() -> int:
    """Run rounds until the time is over; 1 where anything was wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--minutes", type=float, default=2.0, help="how long, about")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of the choice of harms")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that nothing is left behind
    folder = Path(tempfile.mkdtemp(prefix="sqlq-chaos-evidence-"))
    figures = rounds(given.minutes, given.seed, folder)
    sys.stdout.write(json.dumps(figures, indent=1) + "\n")
    if figures["wrong"]:
        sys.stdout.write(f"the evidence is in {folder}\n")
        return 1
    folder.rmdir()
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""
The compatibility run: one short suite in several environments, `python -m tests.compat`.

`cases.py` and what it imports run inside an environment, where only the wheel and pyspark are
installed; the other modules build the environments and start them.
"""

import sys
from pathlib import Path

# `python -m tests.compat` finds the other modules of tests by their names, as pytest does.
if (tests := str(Path(__file__).parents[1])) not in sys.path:
    sys.path.insert(0, tests)

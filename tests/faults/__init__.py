"""Faults: what is promised, while processes die, freeze, compete and leak."""

import sys
from pathlib import Path

# `python -m tests.faults` finds the other folders of tests by their names, as pytest does.
if (tests := str(Path(__file__).parents[1])) not in sys.path:
    sys.path.insert(0, tests)

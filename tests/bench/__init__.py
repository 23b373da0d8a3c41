"""The bench: `python -m tests.bench` measures source and sink against yardsticks."""

import sys
from pathlib import Path

# `python -m tests.bench` finds the other folders of tests by their names, as pytest does.
if (tests := str(Path(__file__).parents[1])) not in sys.path:
    sys.path.insert(0, tests)

"""The bench: `python -m tests.bench` measures source and sink against yardsticks."""

import sys
from pathlib import Path

# Other folders of tests are imported by their names alone, as in pytest.
TESTS = str(Path(__file__).parents[1])
if TESTS not in sys.path:
    sys.path.insert(0, TESTS)

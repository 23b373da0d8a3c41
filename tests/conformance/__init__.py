"""
One suite of promises for every database: install, receive, receipts, send, browse, the peek loop.

Each database brings a `DotNet` (dotnet.py): the transport's own statements, one row at a time, by
a driver that the package does not use. A test calls the package, then asks the endpoint what is in
the tables.
"""

import sys
from pathlib import Path

# `python -m tests.conformance.first_contact` finds the other folders of tests, as pytest does.
if (tests := str(Path(__file__).parents[1])) not in sys.path:
    sys.path.insert(0, tests)

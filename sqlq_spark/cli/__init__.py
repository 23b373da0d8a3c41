"""
The command line.

`--help` and completion import neither pyarrow nor numpy, whose import takes longer than theirs.
Commands, and what they use, import them in the functions that need them.
"""

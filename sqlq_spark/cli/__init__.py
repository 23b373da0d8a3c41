"""
The command line.

`--help` and completion do not import pyarrow and numpy, because that takes longer than all of their
other work. So the commands, and the modules that they use, import both inside functions.
"""

"""
The command line.

Commands, and the modules that they use, import pyarrow and numpy inside functions. So `--help` and
completion do not import them, which would take longer than all of their other work.
"""

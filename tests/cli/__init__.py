"""
The command line, on a real database.

The demo and its server have files of their own, one folder above.
"""

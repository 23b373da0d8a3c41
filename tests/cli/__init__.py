"""The command line, on a real database; the demo and its server have files of their own above."""

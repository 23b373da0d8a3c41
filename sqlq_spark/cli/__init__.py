"""The command line `sqlqueue`, a module for each group of commands."""

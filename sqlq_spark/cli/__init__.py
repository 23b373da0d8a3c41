"""The command line `sqlqueue`: one module for each group of commands."""

"""A kill before each statement and after each commit, and a count of the messages after it."""

"""Rounds in which processes, sessions, the server and its disk fail at random; then a count."""

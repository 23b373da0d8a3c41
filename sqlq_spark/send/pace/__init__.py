"""Protect the endpoints: a task waits for a rate, and for the backlog of its destinations."""

"""Typed columns from JSON bodies, for jobs that write tables."""

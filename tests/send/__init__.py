"""Rows of a frame → messages, without a database."""

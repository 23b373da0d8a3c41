"""Sending: the rows of a DataFrame become messages, which are staged and then dispatched once."""

"""
One suite of promises for every database: install, receive, receipts, send, browse, the peek loop.

Each database brings a `DotNet` (transport.py): the transport's own statements, one row at a time,
by a session that is not the package's. A test calls the package, then asks what is in the tables.
"""

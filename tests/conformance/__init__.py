"""
One suite of promises for every database: install, receive, receipts, send, browse, the peek loop.

Each database brings a `DotNet` (dotnet.py): the transport's own statements, one row at a time, by
a driver that the package does not use. A test calls the package, then asks the endpoint what is in
the tables.
"""

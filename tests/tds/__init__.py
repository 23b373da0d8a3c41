"""Real drivers against a small TDS server that replays answers; no SQL Server is needed."""

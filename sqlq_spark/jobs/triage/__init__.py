"""Error triage: failures in columns, their return to where they failed, and its requests."""

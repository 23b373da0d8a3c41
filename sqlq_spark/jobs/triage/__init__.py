"""Error triage: failures in columns, their return to where they failed, and the ledger of that."""

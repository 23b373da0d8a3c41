"""Error triage: failures as columns, their return, and its record in the dispatch log."""

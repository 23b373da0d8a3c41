"""Real Spark on a real database."""

"""What operators ask for: statistics, checks, reports, retries, scripts."""

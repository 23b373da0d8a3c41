"""What operators use: statistics, checks, reports, retries, purges and the script for a DBA."""

"""What all jobs share: settings, the Spark session, the stream, upkeep of tables, exit codes."""

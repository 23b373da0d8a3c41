"""What the command line shows on a terminal."""

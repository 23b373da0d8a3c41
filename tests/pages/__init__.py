"""The documents: tests compare every table with the code, and run every block of code."""

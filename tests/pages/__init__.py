"""The documents: every table and every block of code in them is held true here."""

"""Attacks by ordinary logins and by messages; each test is one attack that must fail."""

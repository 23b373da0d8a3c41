"""A model of the protocol: its processes step by step, in any order, killed anywhere."""

"""Faults: what is promised, while processes die, freeze, compete and leak."""

"""Receiving: the driver's loop, its plans, the tasks, and their receipts."""

"""An upgrade of the state tables: what an earlier release left is received and sent once."""

"""Send: the rows of a frame become messages. They are staged, and dispatched once."""

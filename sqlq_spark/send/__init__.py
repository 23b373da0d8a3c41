"""Send: a frame's rows become messages, are staged, and are dispatched once."""

"""Send: a frame's rows become messages, are staged, and are dispatched once."""

DUE_BATCH = 100  # due messages that one transaction moves, as in the transport

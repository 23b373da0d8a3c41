"""Commands that make, look at, empty and remove queues."""

"""The driver's side of a stream: the peek loop, what it looks at, and the plan of each batch."""

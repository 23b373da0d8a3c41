"""From the rows of a frame to messages: columns, headers and delays."""

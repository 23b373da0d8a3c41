"""
How long a dispatch waits for `maxMessagesPerSecond`: pure arithmetic.

A dispatch is one transaction, so the pause is between batches. After a batch of n messages, the
next one begins n/rate seconds later at the earliest. Within any t seconds, at most rate·t messages
and one batch become visible.
"""


def seconds_left(messages: int, seconds: float, rate: int) -> float:
    """
    Return how long the next dispatch must still wait.

    Args:
        messages: of the last dispatch.
        seconds: since it began. If the database's clock was set back they are negative, and the
            wait is not longer for it.
        rate: messages per second, >= 1.

    Returns:
        Seconds, from 0 to messages/rate.
    """
    pause = messages / rate
    return min(max(0.0, pause - seconds), pause)

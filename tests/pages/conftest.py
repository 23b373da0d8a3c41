"""The fixture `shop`: the database in which the code of the documents runs."""

from .shop import shop

__all__ = ["shop"]

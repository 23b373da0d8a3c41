"""The shop of the documents."""

from .shop import shop

__all__ = ["shop"]

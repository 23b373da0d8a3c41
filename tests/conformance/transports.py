"""
The transports that the suite runs against, one for each dialect, and the cases that they have.

A case that some databases do not have is left out there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from servers import among

from .transport import PostgreSQL
from .transport_sqlserver import SQLServer

if TYPE_CHECKING:
    from _pytest.mark.structures import ParameterSet

    from .transport import DotNet

LISTED: tuple[type[DotNet], ...] = (
    PostgreSQL,
    SQLServer,
)
TRANSPORTS = {transport.dialect: transport for transport in LISTED}


def cases(kind: str) -> list[ParameterSet]:
    """The names of one kind of shapes, in all; those that some databases lack are marked."""
    shapes = {dialect: getattr(each.shapes, kind) for dialect, each in TRANSPORTS.items()}
    params = []
    for name in dict.fromkeys(name for named in shapes.values() for name in named):
        having = tuple(dialect for dialect, named in shapes.items() if name in named)
        reason = f"{kind.replace('_', ' ')} of it alone"
        marks = [] if len(having) == len(shapes) else [among(having, reason)]
        params.append(pytest.param(name, marks=marks))
    return params

"""
Lock modes and which of them two sessions may hold at once.

A session keeps all modes that it was granted on a resource. That equals Microsoft's conversions: S
and IX together admit what SIX admits, U and X what X admits, RangeS-U and X what RangeX-X admits.
"""

from __future__ import annotations

from typing import Literal, get_args

Mode = Literal["IS", "IX", "S", "U", "X", "SIX", "RangeS-S", "RangeS-U", "RangeI-N", "RangeX-X"]
MODES: tuple[Mode, ...] = get_args(Mode)

# mode → the modes that another session may hold or get beside it
_BESIDE: dict[Mode, str] = {
    "IS": "IS IX S U SIX",
    "IX": "IS IX",
    "S": "IS S U RangeS-S RangeS-U RangeI-N",
    "U": "IS S RangeS-S RangeI-N",
    "X": "RangeI-N",
    "SIX": "IS",
    "RangeS-S": "S U RangeS-S RangeS-U",
    "RangeS-U": "S RangeS-S",
    "RangeI-N": "S U X RangeI-N",
    "RangeX-X": "",
}
COMPATIBLE = {mode: frozenset(others.split()) for mode, others in _BESIDE.items()}

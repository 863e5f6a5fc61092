"""Quantities with units as people write them, parsed to plain numbers in fixed units.

Fields of configuration types use the annotated types below; a bare number is refused because it says no unit.
"""

import math
from functools import cache
from typing import Annotated, Any

import pint
from pydantic import BeforeValidator, PlainSerializer

__all__ = [
    "BytesPerSecond",
    "CapacityBytes",
    "Hertz",
    "Picoseconds",
    "format_bytes",
    "format_seconds",
    "parse_quantity",
]

_EXAMPLES = {
    "byte": ("a size", "40 GiB"),
    "byte / second": ("a bandwidth", "15.754 GB/s"),
    "picosecond": ("a time", "45 us"),
    "hertz": ("a frequency", "1.2 GHz"),
}


@cache
def _registry() -> "pint.UnitRegistry[Any]":
    return pint.UnitRegistry()


def parse_quantity(value: object, unit: str) -> float:
    """Parse a text such as ``"40 GiB"`` and return the magnitude in `unit`.

    ``GB`` is 10^9 bytes and ``GiB`` 2^30, as in the standards (IEC 80000-13).

    Raises:
        ValueError: no unit, an unknown unit, or one of another kind; the message shows a right example.

    >>> parse_quantity("40 GiB", "byte")
    42949672960.0
    """
    kind, example = _EXAMPLES[unit]
    if not isinstance(value, str):
        raise ValueError(f"{value!r} has no unit; {kind} is needed, for instance {example!r}")
    try:
        magnitude: float = _registry().Quantity(value).to(unit).magnitude
    except pint.DimensionalityError:
        raise ValueError(f"{value!r} is not {kind}; write for instance {example!r}") from None
    except (
        pint.UndefinedUnitError,
        pint.PintError,
        AttributeError,
        SyntaxError,
        TypeError,
        ValueError,
    ):
        raise ValueError(
            f"{value!r} is not a number with a unit; {kind} is needed, for instance {example!r}"
        ) from None
    if not math.isfinite(magnitude):
        raise ValueError(f"{value!r} is not finite; {kind} is needed, for instance {example!r}")
    return float(magnitude)


def _whole(unit: str) -> BeforeValidator:
    return BeforeValidator(lambda value: round(parse_quantity(value, unit)))


def _real(unit: str) -> BeforeValidator:
    return BeforeValidator(lambda value: parse_quantity(value, unit))


def format_bytes(size_bytes: float) -> str:
    """Write a size with a binary or a decimal unit, whichever text is shorter.

    >>> format_bytes(40 * 2**30), format_bytes(3.2e12)
    ('40 GiB', '3.2 TB')
    """
    texts = [f"{size_bytes:.12g} B"]
    for prefix, power in (("T", 4), ("G", 3), ("M", 2), ("K", 1)):
        for scale, unit in (
            (1024**power, f"{prefix}iB"),
            (1000**power, f"{'k' if prefix == 'K' else prefix}B"),
        ):
            if abs(size_bytes) >= scale:
                texts.append(f"{size_bytes / scale:.12g} {unit}")
    return min(texts, key=len)


def format_seconds(time_ps: float) -> str:
    """Write a time in picoseconds with the largest unit that keeps it at or above 1: ``"45 us"``.

    >>> format_seconds(45_000_000)
    '45 us'
    """
    for scale, unit in ((1e12, "s"), (1e9, "ms"), (1e6, "us"), (1e3, "ns")):
        if abs(time_ps) >= scale:
            return f"{time_ps / scale:.12g} {unit}"
    return f"{time_ps:.12g} {'ps' if time_ps else 's'}"


def _format_rate(rate: float) -> str:
    return f"{rate / 1e9:.12g} GB/s"


def _format_hertz(rate_hz: float) -> str:
    return f"{rate_hz / 1e9:.12g} GHz"


CapacityBytes = Annotated[int, _whole("byte"), PlainSerializer(format_bytes, return_type=str)]
BytesPerSecond = Annotated[
    float, _real("byte / second"), PlainSerializer(_format_rate, return_type=str)
]
Picoseconds = Annotated[int, _whole("picosecond"), PlainSerializer(format_seconds, return_type=str)]
Hertz = Annotated[float, _real("hertz"), PlainSerializer(_format_hertz, return_type=str)]

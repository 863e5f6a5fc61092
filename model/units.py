"""Quantities with units as people write them, parsed to plain numbers in fixed units.

Fields of configuration types use the annotated types below; a bare number is refused because it says no unit.
"""

import math
import re
from collections.abc import Iterable
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

# Only this much of pint's grammar: it would evaluate an expression, however long that takes, or skip what it cannot read.
_QUANTITY = re.compile(
    r"""\s* (?P<number> [+-]? (?:[0-9]+\.?[0-9]*|\.[0-9]+) (?:[eE][+-]?[0-9]+)? )
        \s* (?P<unit> [A-Za-zµμ]+ (?:(?:\s*/\s*|\s+per\s+)[A-Za-zµμ]+)? ) \s*""",
    re.VERBOSE,
)


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
    match = _QUANTITY.fullmatch(value)
    try:
        if match is None:
            raise ValueError(value)
        magnitude = float(
            _registry().Quantity(float(match["number"]), match["unit"]).to(unit).magnitude
        )
    except pint.DimensionalityError:
        raise ValueError(f"{value!r} is not {kind}; write for instance {example!r}") from None
    except (pint.PintError, AttributeError, ValueError):
        raise ValueError(
            f"{value!r} is not a number with a unit; {kind} is needed, for instance {example!r}"
        ) from None
    if not math.isfinite(magnitude):
        raise ValueError(f"{value!r} is not finite; {kind} is needed, for instance {example!r}")
    return magnitude


def _whole(unit: str) -> BeforeValidator:
    return BeforeValidator(lambda value: round(parse_quantity(value, unit)))


def _real(unit: str) -> BeforeValidator:
    return BeforeValidator(lambda value: parse_quantity(value, unit))


def _exact(value: float, unit: str, scales: Iterable[tuple[float, str]], *, whole: str) -> str:
    """Return the shortest text of `value` (in `unit`) in one of `scales` that reads back exactly, else in `whole`."""
    texts = (f"{value / scale:.12g} {name}" for scale, name in scales)
    for text in sorted(texts, key=len):
        if parse_quantity(text, unit) == value:
            return text
    # Every bit of it: at most 17 digits, and none are needed after the point of a whole number.
    return f"{int(value) if value == int(value) else value!r} {whole}"


def format_bytes(size_bytes: float) -> str:
    """Write a size with the unit that gives the shortest exact text: `parse_quantity` gives the same size again.

    >>> format_bytes(40 * 2**30), format_bytes(3.2e12)
    ('40 GiB', '3.2 TB')
    """
    scales = [(1.0, "B")]
    for prefix, power in (("T", 4), ("G", 3), ("M", 2), ("K", 1)):
        for scale, unit in (
            (1024.0**power, f"{prefix}iB"),
            (1000.0**power, f"{'k' if prefix == 'K' else prefix}B"),
        ):
            if abs(size_bytes) >= scale:
                scales.append((scale, unit))
    return _exact(size_bytes, "byte", scales, whole="B")


def format_seconds(time_ps: float) -> str:
    """Write a time in picoseconds with the largest unit that keeps it at or above 1 (``"45 us"``), and exactly.

    >>> format_seconds(45_000_000)
    '45 us'
    """
    if not time_ps:
        return "0 s"
    for scale, unit in ((1e12, "s"), (1e9, "ms"), (1e6, "us"), (1e3, "ns")):
        if abs(time_ps) >= scale:
            return _exact(time_ps, "picosecond", [(scale, unit)], whole="ps")
    return _exact(time_ps, "picosecond", [(1.0, "ps")], whole="ps")


def _format_rate(rate: float) -> str:
    return _exact(rate, "byte / second", [(1e9, "GB/s")], whole="B/s")


def _format_hertz(rate_hz: float) -> str:
    return _exact(rate_hz, "hertz", [(1e9, "GHz")], whole="Hz")


CapacityBytes = Annotated[int, _whole("byte"), PlainSerializer(format_bytes, return_type=str)]
BytesPerSecond = Annotated[
    float, _real("byte / second"), PlainSerializer(_format_rate, return_type=str)
]
Picoseconds = Annotated[int, _whole("picosecond"), PlainSerializer(format_seconds, return_type=str)]
Hertz = Annotated[float, _real("hertz"), PlainSerializer(_format_hertz, return_type=str)]

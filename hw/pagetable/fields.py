"""Declarative entry formats: one table of fields gives layout, encode, decode and documentation."""

import dataclasses

import numpy as np
from amaranth.hdl import unsigned
from amaranth.lib import data

__all__ = ["EntryFormat", "Field"]


@dataclasses.dataclass(frozen=True)
class Field:
    """One bit field of an entry.

    Parameters
    ----------
    name : str
        Identifier, lower case.
    lsb : int
        Position of the least significant bit.
    width : int
        Width in bits, 1 to 64.
    meaning : str
        What it says, for the documentation table.
    shape : amaranth enum or None
        Enumeration of the codes, if the field has named codes.
    """

    name: str
    lsb: int
    width: int
    meaning: str
    shape: object = None

    @property
    def msb(self) -> int:
        """Position of the most significant bit."""
        return self.lsb + self.width - 1

    @property
    def mask(self) -> int:
        """All ones over the field, at bit 0."""
        return (1 << self.width) - 1

    @property
    def bits(self) -> str:
        """Position as documentation writes it: ``53:8``, or ``3`` for one bit."""
        return f"{self.msb}:{self.lsb}" if self.width > 1 else f"{self.lsb}"


class EntryFormat:
    """Format of one table entry, 64 or 128 bits, as a table of `Field`.

    Fields may overlap (NVIDIA's video and system address share bits); `encode` refuses to set overlapping fields
    together. Bits that no field names are zero when encoded and ignored when decoded.

    Parameters
    ----------
    name : str
        Title of the documentation table.
    width : int
        64 or 128.
    fields : iterable of Field
        The table. No field may straddle a 64-bit boundary.

    Raises
    ------
    ValueError
        For a duplicate name, or a field outside the entry or straddling a 64-bit word.
    """

    def __init__(self, name, width, fields):
        if width not in (64, 128):
            raise ValueError(f"Entry width must be 64 or 128 bits, not {width!r}")
        self.name = name
        self.width = width
        self.fields: dict[str, Field] = {}
        for field in fields:
            if field.name in self.fields:
                raise ValueError(f"Field {field.name!r} of {name!r} is defined twice")
            if field.lsb < 0 or field.msb >= width or field.lsb // 64 != field.msb // 64:
                raise ValueError(
                    f"Field {field.name!r} must lie within one 64-bit word of the {width}-bit entry, "
                    f"not at {field.bits}"
                )
            self.fields[field.name] = field

    @property
    def layout(self):
        """Amaranth layout of the entry; overlapping fields overlap in it."""
        return data.FlexibleLayout(
            self.width,
            {
                f.name: data.Field(f.shape if f.shape is not None else unsigned(f.width), f.lsb)
                for f in self.fields.values()
            },
        )

    def _field(self, name):
        try:
            return self.fields[name]
        except KeyError:
            raise ValueError(
                f"{self.name!r} has no field {name!r}; its fields are {', '.join(self.fields)}"
            ) from None

    def encode(self, **values) -> int:
        """Return the entry with the given fields set and all else zero.

        Raises
        ------
        ValueError
            For an unknown field, a value that does not fit, or two overlapping fields that are both given.
        """
        word = used = 0
        for name, value in values.items():
            field = self._field(name)
            value = int(value)
            if not 0 <= value <= field.mask:
                raise ValueError(
                    f"Field {name!r} of {self.name!r} takes 0 to {field.mask:#x}, not {value:#x}"
                )
            if used & (field.mask << field.lsb):
                raise ValueError(
                    f"Field {name!r} of {self.name!r} overlaps another field that is given"
                )
            used |= field.mask << field.lsb
            word |= value << field.lsb
        return word

    def decode(self, word) -> dict[str, int]:
        """Return every field of the entry `word` (a non-negative int below 2**width) by name.

        Raises
        ------
        ValueError
            If `word` does not fit the entry.
        """
        word = int(word)
        if not 0 <= word < 1 << self.width:
            raise ValueError(f"{self.name!r} is {self.width} bits wide, {word:#x} does not fit")
        return {f.name: (word >> f.lsb) & f.mask for f in self.fields.values()}

    def encode_many(self, **values) -> np.ndarray:
        """Vectorised `encode`: arrays or scalars that broadcast, to `np.uint64`.

        Returns shape ``(n,)`` for a 64-bit format, ``(n, 2)`` (low word first) for a 128-bit one. Same errors as
        `encode`, except that overlap is refused by field and not by value.
        """
        arrays = {k: np.asarray(v, dtype=np.uint64) for k, v in values.items()}
        shape = np.broadcast_shapes(*(a.shape for a in arrays.values())) if arrays else ()
        words = np.zeros((*shape, self.width // 64), dtype=np.uint64)
        used = 0
        for name, array in arrays.items():
            field = self._field(name)
            if array.size and int(array.max()) > field.mask:
                raise ValueError(
                    f"Field {name!r} of {self.name!r} takes 0 to {field.mask:#x}, "
                    f"not {int(array.max()):#x}"
                )
            if used & (field.mask << field.lsb):
                raise ValueError(
                    f"Field {name!r} of {self.name!r} overlaps another field that is given"
                )
            used |= field.mask << field.lsb
            words[..., field.lsb // 64] |= array << np.uint64(field.lsb % 64)
        return words[..., 0] if self.width == 64 else words

    def get_many(self, words, name) -> np.ndarray:
        """Vectorised read of one field from `np.uint64` words shaped as `encode_many` returns them."""
        field = self._field(name)
        words = np.asarray(words, dtype=np.uint64)
        part = words if self.width == 64 else words[..., field.lsb // 64]
        return (part >> np.uint64(field.lsb % 64)) & np.uint64(field.mask)

    def decode_many(self, words) -> dict[str, np.ndarray]:
        """Vectorised `decode`: every field by name, each an `np.uint64` array."""
        return {name: self.get_many(words, name) for name in self.fields}

    def markdown(self) -> str:
        """Return the documentation table (Markdown) of the format."""
        lines = [f"**{self.name}** ({self.width} bits)", "", "| bits | field | meaning |", "|---|---|---|"]
        for f in sorted(self.fields.values(), key=lambda f: (f.lsb, f.msb)):
            codes = ""
            if f.shape is not None:
                codes = " Codes: " + ", ".join(f"{c.value} {c.name}" for c in f.shape) + "."
            lines.append(f"| {f.bits} | `{f.name}` | {f.meaning}{codes} |")
        return "\n".join(lines) + "\n"

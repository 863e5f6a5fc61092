"""Random page tables and addresses for tests and benches: every page size, location, permission and malformed entry."""

import dataclasses

import numpy as np

from .nvidia_v2 import (
    LOCATION,
    LOCATION_2M,
    PDE,
    PDE0,
    PTE,
    VA_BITS,
    Level,
    PageSize,
    PdeAperture,
    PteAperture,
)
from .table import Location, PageTable

__all__ = ["RandomTable", "random_table"]

_REGION = 1 << 21


@dataclasses.dataclass
class RandomTable:
    """A page table and the 2 MB regions that it says something about."""

    table: PageTable
    """The table; more may be mapped."""
    regions: np.ndarray
    """Byte addresses of the 2 MB regions, uint64."""
    rng: np.random.Generator
    """Source of randomness."""

    def addresses(self, count: int) -> np.ndarray:
        """Return `count` byte addresses (uint64): most in the regions, some anywhere in the 49 bits, and repeats."""
        rng = self.rng
        va = rng.choice(self.regions, count) + rng.integers(0, _REGION, count).astype(np.uint64)
        # Few pages per region, so that pages come again.
        narrow = rng.random(count) < 0.7
        va[narrow] &= ~np.uint64(0x1C_E000)
        wild = rng.random(count) < 0.03
        va[wild] = rng.integers(0, 1 << VA_BITS, int(wild.sum())).astype(np.uint64)
        again = np.flatnonzero(rng.random(count) < 0.3)
        again = again[again > 0]
        va[again] = va[again - 1] ^ rng.integers(0, 1 << 12, len(again)).astype(np.uint64)
        return va

    def remap(self, count: int):
        """Map `count` regions anew, of any kind; what was there is gone."""
        for region in self.rng.choice(self.regions, count).tolist():
            _clear(self.table, region)
            _fill_region(self.table, self.rng, region)


def random_table(
    seed: int, *, regions: int = 24, malformed: float = 0.15, pa_bits: int = 47, **kwargs
) -> RandomTable:
    """Build a random table.

    Parameters
    ----------
    seed : int
        Same seed, same table.
    regions : int
        Number of 2 MB regions with something in them, spread over a few root entries; at least 4.
    malformed : float
        Share of regions with an entry that the format forbids or a directory entry that ends the walk.
    pa_bits : int
        Implemented width of physical addresses; some frames lie beyond.
    **kwargs
        Passed to `PageTable`.
    """
    rng = np.random.default_rng(seed)
    table = PageTable(pa_bits=pa_bits, **kwargs)
    spread = max(3, regions // 6)
    tops = np.unique(rng.integers(0, 1 << (VA_BITS - 29), spread) << 29)
    # An address that differs in the top bit only: tags must keep it.
    tops = np.unique(np.append(tops, tops[0] ^ (1 << (VA_BITS - 1))))
    bases = np.unique(rng.choice(tops, regions) + (rng.integers(0, 12, regions) << 21))
    for base in bases.tolist():
        if rng.random() < malformed:
            _malform(table, rng, base)
        else:
            _fill_region(table, rng, base)
    return RandomTable(table, bases.astype(np.uint64), rng)


def _clear(table, region):
    """Make the region's PDE0 an invalid directory entry, if the upper levels lead there at all."""
    try:
        table.unmap(region, PageSize.SIZE_2M)
    except ValueError:
        return


def _locations(rng, count):
    return rng.choice(len(Location), count, p=(0.35, 0.2, 0.05, 0.15, 0.08, 0.1, 0.07))


def _permissions(rng, count):
    return {
        "read_only": rng.random(count) < 0.2,
        "atomic_disable": rng.random(count) < 0.2,
        "privilege": rng.random(count) < 0.1,
        "generation": rng.integers(0, 256, count),
    }


def _fill_region(table, rng, base):
    """Map the region as one 2 MB page, or with 64 KB pages, 4 KB pages, or both."""
    kind = rng.integers(0, 4)
    try:
        if kind == 0:
            location = Location(int(_locations(rng, 1)[0]))
            frame = int(rng.integers(0, 1 << 16)) << 9
            if location == Location.HOST:
                frame = int(rng.integers(0, 1 << (table.pa_bits - 21))) << 9
            table.map_many(
                np.array([base]), PageSize.SIZE_2M, location, frame, **_permissions(rng, 1)
            )
            return
        big = rng.random(32) < (0.0, 0.0, 1.0, 0.5)[kind] * 0.8
        if big.any():
            va = base + (np.flatnonzero(big) << 16)
            n = len(va)
            table.map_many(
                va,
                PageSize.SIZE_64K,
                _locations(rng, n),
                rng.integers(0, 1 << 21, n) << 4,
                **_permissions(rng, n),
            )
        if kind != 2:
            small = rng.random(512) < 0.85
            small &= ~np.repeat(big, 16)
            va = base + (np.flatnonzero(small) << 12)
            n = len(va)
            table.map_many(
                va,
                PageSize.SIZE_4K,
                _locations(rng, n),
                rng.integers(0, 1 << 25, n),
                **_permissions(rng, n),
            )
    except ValueError:
        # Below a directory entry that `_malform` made a leaf: stays as it is.
        return


def _malform(table, rng, base):
    """Put one entry that ends a walk in an unusual way."""
    far = 1 << (table.memory_address_bits - 12)
    aligned = PTE.encode(valid=1, aperture=PteAperture.SYSTEM_COHERENT, address_sys=0x200)
    choices = [
        (Level.PDE0, PTE.encode(valid=1, address_vid=0x201), 0),
        (Level.PDE0, PTE.encode(valid=1, aperture=PteAperture.PEER, address_vid=0x200), 0),
        (Level.PDE0, PTE.encode(valid=1, encrypted=1, address_vid=0x200), 0),
        (Level.PDE0, aligned | 1 << 53, 0),
        (Level.PDE0, aligned & ~6 | PteAperture.SYSTEM_NONCOHERENT << 1, 0),
        (Level.PDE0, PDE0.encode(vol_big=1), 0),
        (Level.PDE0, LOCATION_2M.encode(mark_2m=1, zero=1, state=1, page=5), 0),
        (Level.PDE0, LOCATION_2M.encode(state=1, page=5), 0),
        (Level.PDE0, PDE0.encode(aperture_big=PdeAperture.SYSTEM_COHERENT, address_big_sys=far << 4), 0),
        (Level.PDE0, PDE0.encode(aperture_small=2, address_small_sys=far) >> 64, 1),
        (Level.PDE0, PDE0.encode(aperture_small=1, address_small_vid=0x1FF_FFFF) >> 64, 1),
        (Level.PDE1, PDE.encode(vol=1), 0),
        (Level.PDE1, PDE.encode(is_pte=1, aperture=1, address_vid=7), 0),
        (Level.PDE1, PDE.encode(aperture=PdeAperture.SYSTEM_COHERENT, address_sys=far), 0),
        (Level.PT64K, PTE.encode(privilege=1), 0),
        (Level.PT64K, PTE.encode(vol=1), 0),
        (Level.PT64K, PTE.encode(valid=1, address_vid=0x17), 0),
        (Level.PT64K, LOCATION.encode(state=1, page=7, mark_2m=1), 0),
        (Level.PT4K, PTE.encode(vol=1, privilege=1), 0),
        (Level.PT4K, LOCATION.encode(state=2, zero=0b10000, page=7), 0),
    ]
    level, word, half = choices[int(rng.integers(0, len(choices)))]
    try:
        if level in (Level.PT64K, Level.PT4K):
            step = 16 if level == Level.PT64K else 12
            _fill_region(table, rng, base)
            for index in range(0, 1 << (21 - step), 3):
                table.poke(base + (index << step), level, word)
        else:
            table.poke(base, level, word, half=half)
    except ValueError:
        # The level above ends the walk already.
        return

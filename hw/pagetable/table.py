"""Golden page tables: a builder for NVIDIA v2 tables, and a walk of the memory image by the rules of the format.

The walk (`TableImage.translate`, and `TableImage.translate_many` for arrays) reads only the image, never the builder's
records, so that it can judge both the builder and the hardware.
"""

import dataclasses
import enum

import numpy as np

from .nvidia_v2 import (
    LEVELS,
    LOCATION,
    LOCATION_2M,
    PDE,
    PDE0,
    PTE,
    VA_BITS,
    VIDEO_FRAME_BITS,
    Access,
    Level,
    LocationState,
    PageSize,
    PdeAperture,
    PteAperture,
    Status,
)

__all__ = ["Location", "PageTable", "TableImage", "Translation", "Translations"]

_TABLE_BYTES = 4096
_WORDS = _TABLE_BYTES // 8
_U64 = np.uint64


class Location(enum.IntEnum):
    """Where a page is, as the builder takes it."""

    GPU = 0
    """Video memory: a valid entry, frame number in 4 KB units below 2**25."""
    HOST = 1
    """Host memory, mapped: a valid entry with the coherent system aperture, frame number below 2**46."""
    NONE = 2
    """Nowhere yet: location word of state NONE."""
    FLASH = 3
    """On flash: location word with the flash page number (4 KB units)."""
    HOST_KEPT = 4
    """Kept in host memory but not mapped: location word with the host frame number."""
    MIGRATING = 5
    """On its way: location word with the transfer set."""
    SPARSE = 6
    """Sparse: reads give zero, writes are dropped."""


_STATE = {
    Location.NONE: LocationState.NONE,
    Location.FLASH: LocationState.FLASH,
    Location.HOST_KEPT: LocationState.HOST_KEPT,
    Location.MIGRATING: LocationState.MIGRATING,
}


@dataclasses.dataclass(frozen=True)
class Translation:
    """Result of one golden translation; fields as in `pagetide.hw.translation.TranslationResponse`."""

    status: Status
    """Outcome."""
    pa: int = 0
    """Physical byte address if OK, else 0."""
    aperture: PteAperture = PteAperture.VIDEO
    """Of the page if OK, else 0."""
    page_size: PageSize = PageSize.SIZE_4K
    """Size of the leaf or location word; 0 where the walk found none."""
    flash_page: int = 0
    """Page number of a location word (FLASH, HOST_KEPT, MIGRATING), else 0."""
    generation: int = 0
    """Generation byte of a location word, else 0."""
    levels: int = 0
    """Table reads done."""


@dataclasses.dataclass(frozen=True)
class Translations:
    """Results of golden translations as arrays of equal length; fields as in `Translation`."""

    status: np.ndarray
    """`Status` codes, uint8."""
    pa: np.ndarray
    """Physical byte addresses, uint64."""
    aperture: np.ndarray
    """`PteAperture` codes, uint8."""
    page_size: np.ndarray
    """`PageSize` codes, uint8."""
    flash_page: np.ndarray
    """Page numbers of location words, uint64."""
    generation: np.ndarray
    """Generation bytes of location words, uint8."""
    levels: np.ndarray
    """Table reads done, uint8."""

    def __len__(self):
        return len(self.status)

    def __getitem__(self, index) -> Translation:
        """Return one result as a `Translation`."""
        return Translation(
            Status(int(self.status[index])),
            int(self.pa[index]),
            PteAperture(int(self.aperture[index])),
            PageSize(int(self.page_size[index])),
            int(self.flash_page[index]),
            int(self.generation[index]),
            int(self.levels[index]),
        )


@dataclasses.dataclass(frozen=True)
class TableImage:
    """Page tables as memory holds them, and the golden walk over them.

    A read outside the image ends a walk with BUS_ERROR, as a memory that answers DECERR there makes the hardware do.
    Tables of all apertures share one address space here.
    """

    bases: np.ndarray
    """Byte addresses of the 4 KB pages that hold tables, sorted, uint64, shape (n,)."""
    contents: np.ndarray
    """Their contents as little-endian 64-bit words, uint64, shape (n, 512)."""
    root: int
    """Byte address of the root table."""
    root_aperture: PdeAperture = PdeAperture.VIDEO
    """Aperture of the root table; INVALID makes every walk end with UNBOUND_INST_BLOCK."""
    va_limit: int = 0
    """First virtual page (4 KB units) beyond the limit; 0 for none."""
    pa_bits: int = 47
    """Implemented width of physical page addresses in bits."""
    memory_address_bits: int = 47
    """Implemented width of table addresses in bits."""

    def read(self, address: int) -> int | None:
        """Return the 64-bit word at byte `address` (a multiple of 8), or None outside the image."""
        row = int(np.searchsorted(self.bases, _U64(address & ~(_TABLE_BYTES - 1))))
        if row == len(self.bases) or int(self.bases[row]) != address & ~(_TABLE_BYTES - 1):
            return None
        return int(self.contents[row, (address % _TABLE_BYTES) // 8])

    def translate(self, va: int, access: Access = Access.READ) -> Translation:
        """Walk the image for one access to byte address `va`.

        Raises
        ------
        ValueError
            If `va` does not fit 49 bits.
        """
        if not 0 <= va < 1 << VA_BITS:
            raise ValueError(f"Virtual address must fit {VA_BITS} bits, not {va:#x}")
        if self.root_aperture == PdeAperture.INVALID:
            return Translation(Status.UNBOUND_INST_BLOCK)
        if self.va_limit and va >> 12 >= self.va_limit:
            return Translation(Status.VA_LIMIT)

        def fault(status):
            return Translation(status, levels=reads)

        def out_of_reach(address):
            return address >> self.memory_address_bits != 0

        reads = 0
        table = self.root & ~(_TABLE_BYTES - 1)
        for level in (Level.PDE3, Level.PDE2, Level.PDE1):
            reads += 1
            word = self.read(table + _offset(level, va))
            if word is None:
                return fault(Status.BUS_ERROR)
            pde = PDE.decode(word)
            if pde["is_pte"]:
                return fault(Status.PDE_SIZE)
            if pde["aperture"] == PdeAperture.INVALID:
                return fault(Status.SPARSE if pde["vol"] else Status.PDE)
            name = "address_vid" if pde["aperture"] == PdeAperture.VIDEO else "address_sys"
            table = pde[name] << 12
            if out_of_reach(table):
                return fault(Status.REGION)

        reads += 1
        address = table + _offset(Level.PDE0, va)
        low, high = self.read(address), self.read(address + 8)
        if low is None or high is None:
            return fault(Status.BUS_ERROR)
        pde0 = PDE0.decode(low | high << 64)
        if pde0["is_pte"]:
            return self._leaf(low, va, access, PageSize.SIZE_2M, reads)
        big, small = pde0["aperture_big"], pde0["aperture_small"]
        if big == PdeAperture.INVALID and small == PdeAperture.INVALID:
            word = LOCATION_2M.decode(low)
            if pde0["vol_big"]:
                return fault(Status.SPARSE)
            if not word["mark_2m"] or word["zero"]:
                return fault(Status.PDE)
            return _located(word, PageSize.SIZE_2M, reads)

        if big != PdeAperture.INVALID:
            reads += 1
            name = "address_big_vid" if big == PdeAperture.VIDEO else "address_big_sys"
            table = pde0[name] << 8
            if out_of_reach(table):
                reads -= 1
                return fault(Status.REGION)
            word = self.read(table + _offset(Level.PT64K, va))
            if word is None:
                return fault(Status.BUS_ERROR)
            answer = self._pte(word, va, access, PageSize.SIZE_64K, reads)
            if answer.status != Status.NOT_RESIDENT or small == PdeAperture.INVALID:
                return answer

        name = "address_small_vid" if small == PdeAperture.VIDEO else "address_small_sys"
        table = pde0[name] << 12
        if out_of_reach(table):
            return fault(Status.REGION)
        reads += 1
        word = self.read(table + _offset(Level.PT4K, va))
        if word is None:
            return fault(Status.BUS_ERROR)
        return self._pte(word, va, access, PageSize.SIZE_4K, reads)

    def _pte(self, word, va, access, size, reads):
        """Judge a word of a page table."""
        pte = PTE.decode(word)
        if pte["valid"]:
            return self._leaf(word, va, access, size, reads)
        if pte["privilege"]:
            return Translation(Status.PTE, levels=reads)
        if pte["vol"]:
            return Translation(Status.SPARSE, levels=reads)
        location = LOCATION.decode(word)
        if location["zero"] or location["mark_2m"]:
            return Translation(Status.PTE, levels=reads)
        return _located(location, size, reads)

    def _leaf(self, word, va, access, size, reads):
        """Judge a valid leaf."""
        pte = PTE.decode(word)
        system = pte["aperture"] in (PteAperture.SYSTEM_COHERENT, PteAperture.SYSTEM_NONCOHERENT)
        pa = (pte["address_sys"] if system else pte["address_vid"]) << 12
        if pa % size.bytes:
            return Translation(Status.PDE_SIZE, levels=reads)
        if pa >> self.pa_bits:
            return Translation(Status.REGION, levels=reads)
        if pte["aperture"] == PteAperture.PEER:
            return Translation(Status.UNSUPPORTED_APERTURE, levels=reads)
        if pte["encrypted"]:
            return Translation(Status.UNSUPPORTED_KIND, levels=reads)
        denied = None
        if pte["privilege"]:
            denied = Status.PRIV
        elif pte["read_only"] and access in (Access.WRITE, Access.ATOMIC):
            denied = Status.RO
        elif pte["atomic_disable"] and access == Access.ATOMIC:
            denied = Status.ATOMIC
        if denied is not None:
            return Translation(denied, page_size=size, levels=reads)
        return Translation(
            Status.OK,
            pa=pa | va % size.bytes,
            aperture=PteAperture(pte["aperture"]),
            page_size=size,
            levels=reads,
        )

    def _read_many(self, address, active):
        """Words at byte addresses where `active`; second result is True where the image has none."""
        base = address & _U64(~(_TABLE_BYTES - 1) & (2**64 - 1))
        row = np.minimum(np.searchsorted(self.bases, base), len(self.bases) - 1)
        missing = active & (self.bases[row] != base)
        return self.contents[row, (address & _U64(_TABLE_BYTES - 1)) >> _U64(3)], missing

    def translate_many(self, va, access=Access.READ) -> Translations:
        """Vectorised `translate`: arrays of byte addresses and `Access` codes (or one code for all).

        Raises
        ------
        ValueError
            If an address does not fit 49 bits.
        """
        va = np.atleast_1d(np.asarray(va, dtype=_U64))
        access = np.broadcast_to(np.asarray(access, dtype=np.uint8), va.shape)
        if va.size and int(va.max()) >> VA_BITS:
            raise ValueError(f"Virtual addresses must fit {VA_BITS} bits, not {int(va.max()):#x}")
        n = len(va)
        status = np.full(n, Status.OK, dtype=np.uint8)
        reads = np.zeros(n, dtype=np.uint8)
        size = np.zeros(n, dtype=np.uint8)
        leaf = np.zeros(n, dtype=_U64)
        found = np.zeros(n, dtype=bool)  # `leaf` holds a word of a page table or a 2 MB leaf
        located = np.zeros(n, dtype=bool)
        generation = np.zeros(n, dtype=np.uint8)
        flash_page = np.zeros(n, dtype=_U64)
        active = np.ones(n, dtype=bool)

        def end(where, code):
            where = where & active
            status[where] = code
            active[where] = False

        def reach(table):
            end((table >> _U64(self.memory_address_bits)) != 0, Status.REGION)

        if self.root_aperture == PdeAperture.INVALID:
            end(active.copy(), Status.UNBOUND_INST_BLOCK)
        if self.va_limit:
            end((va >> _U64(12)) >= _U64(self.va_limit), Status.VA_LIMIT)

        table = np.full(n, self.root & ~(_TABLE_BYTES - 1), dtype=_U64)
        for level in (Level.PDE3, Level.PDE2, Level.PDE1):
            reads += active
            word, missing = self._read_many(table + _offset(level, va), active)
            end(missing, Status.BUS_ERROR)
            aperture = PDE.get_many(word, "aperture")
            end(PDE.get_many(word, "is_pte") == 1, Status.PDE_SIZE)
            invalid = aperture == PdeAperture.INVALID
            end(invalid & (PDE.get_many(word, "vol") == 1), Status.SPARSE)
            end(invalid, Status.PDE)
            table = np.where(
                aperture == PdeAperture.VIDEO,
                PDE.get_many(word, "address_vid"),
                PDE.get_many(word, "address_sys"),
            ) << _U64(12)
            reach(table)

        reads += active
        address = table + _offset(Level.PDE0, va)
        low, missing = self._read_many(address, active)
        high, _ = self._read_many(address + _U64(8), active)
        end(missing, Status.BUS_ERROR)
        pair = np.stack([low, high], axis=-1)
        big = PDE0.get_many(pair, "aperture_big")
        small = PDE0.get_many(pair, "aperture_small")
        whole = active & (PDE0.get_many(pair, "is_pte") == 1)
        leaf[whole] = low[whole]
        size[whole] = PageSize.SIZE_2M
        found |= whole
        active &= ~whole
        invalid = (big == PdeAperture.INVALID) & (small == PdeAperture.INVALID)
        end(invalid & (PDE0.get_many(pair, "vol_big") == 1), Status.SPARSE)
        marked = (LOCATION_2M.get_many(low, "mark_2m") == 1) & (
            LOCATION_2M.get_many(low, "zero") == 0
        )
        end(invalid & ~marked, Status.PDE)
        here = active & invalid
        status[here] = Status.NOT_RESIDENT + LOCATION_2M.get_many(low, "state")[here]
        flash_page[here] = LOCATION_2M.get_many(low, "page")[here]
        generation[here] = LOCATION_2M.get_many(low, "generation")[here]
        size[here] = PageSize.SIZE_2M
        located |= here
        active &= ~here

        def page_table(table, level, page_size, where, last):
            """Read the table where `where`; take what ends the walk. Where not `last`, state NONE does not."""
            nonlocal active
            others = active & ~where
            active = active & where
            reach(table)
            reads[active] += 1
            word, missing = self._read_many(table + _offset(level, va), active)
            end(missing, Status.BUS_ERROR)
            valid = PTE.get_many(word, "valid") == 1
            here = active & valid
            leaf[here] = word[here]
            size[here] = page_size
            found[here] = True
            active &= ~here
            end(PTE.get_many(word, "privilege") == 1, Status.PTE)
            end(PTE.get_many(word, "vol") == 1, Status.SPARSE)
            end(
                (LOCATION.get_many(word, "zero") != 0) | (LOCATION.get_many(word, "mark_2m") == 1),
                Status.PTE,
            )
            state = LOCATION.get_many(word, "state")
            here = active & (last | (state != LocationState.NONE))
            status[here] = Status.NOT_RESIDENT + state[here]
            flash_page[here] = LOCATION.get_many(word, "page")[here]
            generation[here] = LOCATION.get_many(word, "generation")[here]
            size[here] = page_size
            located[here] = True
            active &= ~here
            active |= others

        big_table = np.where(
            big == PdeAperture.VIDEO,
            PDE0.get_many(pair, "address_big_vid"),
            PDE0.get_many(pair, "address_big_sys"),
        ) << _U64(8)
        small_table = np.where(
            small == PdeAperture.VIDEO,
            PDE0.get_many(pair, "address_small_vid"),
            PDE0.get_many(pair, "address_small_sys"),
        ) << _U64(12)
        page_table(
            big_table,
            Level.PT64K,
            PageSize.SIZE_64K,
            big != PdeAperture.INVALID,
            small == PdeAperture.INVALID,
        )
        everywhere = np.ones(n, dtype=bool)
        page_table(small_table, Level.PT4K, PageSize.SIZE_4K, everywhere, everywhere)

        # Leaves.
        flash_page[status == Status.NOT_RESIDENT] = 0
        code = PTE.get_many(leaf, "aperture")
        system = code >= PteAperture.SYSTEM_COHERENT
        pa = np.where(
            system, PTE.get_many(leaf, "address_sys"), PTE.get_many(leaf, "address_vid")
        ) << _U64(12)
        shift = np.array([s.shift for s in PageSize], dtype=_U64)[size]
        inside = (_U64(1) << shift) - _U64(1)
        writes = (access == Access.WRITE) | (access == Access.ATOMIC)

        def get(name):
            return PTE.get_many(leaf, name) == 1

        causes = [
            ((pa & inside) != 0, Status.PDE_SIZE),
            ((pa >> _U64(self.pa_bits)) != 0, Status.REGION),
            (code == PteAperture.PEER, Status.UNSUPPORTED_APERTURE),
            (get("encrypted"), Status.UNSUPPORTED_KIND),
            (get("privilege"), Status.PRIV),
            (get("read_only") & writes, Status.RO),
            (get("atomic_disable") & (access == Access.ATOMIC), Status.ATOMIC),
        ]
        for where, cause in reversed(causes):
            status[found & where] = cause
        ok = found & (status == Status.OK)
        sized = ok | located
        for kept in (Status.PRIV, Status.RO, Status.ATOMIC):
            sized |= found & (status == kept)
        return Translations(
            status=status,
            pa=np.where(ok, pa | (va & inside), _U64(0)),
            aperture=np.where(ok, code, _U64(0)).astype(np.uint8),
            page_size=np.where(sized, size, 0).astype(np.uint8),
            flash_page=flash_page,
            generation=generation,
            levels=reads,
        )


def _offset(level, va):
    """Byte offset of the entry for `va` (int or uint64 array) in a table of `level`."""
    lsb, width, size_log2 = LEVELS[level]
    if isinstance(va, np.ndarray):
        return ((va >> _U64(lsb)) & _U64((1 << width) - 1)) << _U64(size_log2)
    return ((va >> lsb) & ((1 << width) - 1)) << size_log2


def _located(word, size, reads):
    """Translation of a decoded location word."""
    state = word["state"]
    return Translation(
        Status(Status.NOT_RESIDENT + state),
        page_size=size,
        flash_page=word["page"] if state != LocationState.NONE else 0,
        generation=word["generation"],
        levels=reads,
    )


class PageTable:
    """Builder of NVIDIA v2 page tables.

    Tables are laid out upwards from `base` in the order in which they come into being; the root is the first.

    Parameters
    ----------
    base : int
        Byte address of the first table; a multiple of 4096.
    aperture : PdeAperture
        Where the tables lie; every pointer to a table gets this code.
    pa_bits, memory_address_bits : int
        Implemented address widths, for the golden walk.

    Raises
    ------
    ValueError
        For a base that is not aligned or an invalid aperture.
    """

    def __init__(
        self,
        *,
        base: int = 0x10_0000,
        aperture: PdeAperture = PdeAperture.VIDEO,
        pa_bits: int = 47,
        memory_address_bits: int = 47,
    ):
        if base % _TABLE_BYTES or not 0 <= base < 1 << memory_address_bits:
            raise ValueError(
                f"Base of the page tables must be a multiple of 4096 below 2**{memory_address_bits}, "
                f"not {base:#x}"
            )
        if aperture == PdeAperture.INVALID:
            raise ValueError("Aperture of the page tables must not be INVALID")
        self._base = base
        self._aperture = PdeAperture(aperture)
        self._pa_bits = pa_bits
        self._memory_address_bits = memory_address_bits
        self._words = np.zeros((16, _WORDS), dtype=_U64)
        self._rows = 0
        self._big_left = 0  # 256-byte places left in the page that holds 64 KB tables
        self._big_next = 0
        # (level, va >> bits covered by one table) -> byte address of the table
        self._tables: dict[tuple[Level, int], int] = {}
        self._tables[Level.PDE3, 0] = self._new_page()

    @property
    def root(self) -> int:
        """Byte address of the root table."""
        return self._base

    @property
    def root_aperture(self) -> PdeAperture:
        """Aperture of the root table."""
        return self._aperture

    @property
    def pa_bits(self) -> int:
        """Implemented width of physical page addresses in bits."""
        return self._pa_bits

    @property
    def memory_address_bits(self) -> int:
        """Implemented width of table addresses in bits."""
        return self._memory_address_bits

    @property
    def bytes(self) -> int:
        """Memory that the tables take, in bytes."""
        return self._rows * _TABLE_BYTES

    def _new_page(self):
        if self._rows == len(self._words):
            self._words = np.concatenate([self._words, np.zeros_like(self._words)])
        self._rows += 1
        return self._base + (self._rows - 1) * _TABLE_BYTES

    def _new_big(self):
        """Address of a new 256-byte table."""
        if not self._big_left:
            self._big_next = self._new_page()
            self._big_left = _TABLE_BYTES // 256
        self._big_left -= 1
        self._big_next += 256
        return self._big_next - 256

    def _word_index(self, address):
        address = np.asarray(address, dtype=_U64) - _U64(self._base)
        return address >> _U64(12), (address & _U64(_TABLE_BYTES - 1)) >> _U64(3)

    def _write(self, address, words):
        row, column = self._word_index(address)
        self._words[row, column] = words

    def _read(self, address):
        row, column = self._word_index(address)
        return self._words[row, column]

    def _pointer(self, address, kind):
        """Directory entry fields that point to the table at `address`."""
        video = self._aperture == PdeAperture.VIDEO
        if kind == "":
            return PDE.encode(
                aperture=self._aperture,
                **{"address_vid" if video else "address_sys": address >> 12},
            )
        shift = 8 if kind == "big" else 12
        return PDE0.encode(
            **{
                f"aperture_{kind}": self._aperture,
                f"address_{kind}_{'vid' if video else 'sys'}": address >> shift,
            }
        )

    def _table(self, level, prefix):
        """Byte address of the table of `level` for the addresses whose upper bits are `prefix`; made if missing."""
        known = self._tables.get((level, prefix))
        if known is not None:
            return known
        if level in (Level.PDE2, Level.PDE1, Level.PDE0):
            above = Level(level - 1)
            lsb, width, _ = LEVELS[above]
            parent = self._table(above, prefix >> width if above != Level.PDE3 else 0)
            entry = parent + _offset(above, prefix << lsb)
            if int(self._read(entry)) & 1:
                raise ValueError(
                    f"Address {prefix << lsb:#x} has a leaf in its {above.name}; unmap it first"
                )
            address = self._new_page()
            self._write(entry, self._pointer(address, ""))
        else:
            entry = self._table(Level.PDE0, prefix >> 8) + _offset(Level.PDE0, prefix << 21)
            low, high = int(self._read(entry)), int(self._read(entry + 8))
            pair = PDE0.decode(low | high << 64)
            unused = not pair["aperture_big"] and not pair["aperture_small"]
            if pair["is_pte"] or (unused and low):
                raise ValueError(
                    f"Address {prefix << 21:#x} is mapped as a 2 MB page; unmap it first"
                )
            if level == Level.PT64K:
                address = self._new_big()
                low |= self._pointer(address, "big")
            else:
                address = self._new_page()
                high |= self._pointer(address, "small") >> 64
            self._write(entry, low)
            self._write(entry + 8, high)
        self._tables[level, prefix] = address
        return address

    def entry_address(self, va, level: Level):
        """Byte addresses of the entries for `va` (int or array) in the tables of `level`; tables are made where missing.

        Raises
        ------
        ValueError
            If a table would stand below a 2 MB leaf or location word.
        """
        level = Level.PT4K if level == Level.PT4K_AFTER_64K else Level(level)
        va = np.asarray(va, dtype=_U64)
        lsb, width, _ = LEVELS[level]
        # PT64K and PT4K tables both cover 2 MB.
        covered = 49 if level == Level.PDE3 else lsb + width
        prefixes, inverse = np.unique(va >> _U64(covered), return_inverse=True)
        tables = np.array([self._table(level, int(p)) for p in prefixes], dtype=_U64)
        return tables[inverse.reshape(va.shape)] + _offset(level, np.atleast_1d(va)).reshape(
            va.shape
        )

    def poke(self, va: int, level: Level, word: int, *, half: int = 0):
        """Write a raw 64-bit `word` as the entry for `va` in the table of `level`, for what `map` refuses to build.

        `half` 1 selects the high half of a dual PDE0.
        """
        self._write(int(self.entry_address(va, level)) + 8 * half, _U64(word))

    def map(
        self,
        va: int,
        page_size: PageSize,
        location: Location,
        frame: int = 0,
        *,
        read_only: bool = False,
        atomic_disable: bool = False,
        privilege: bool = False,
        generation: int = 0,
    ):
        """Map one page; as `map_many`, with scalars."""
        self.map_many(
            np.array([va], dtype=_U64),
            page_size,
            location,
            frame,
            read_only=read_only,
            atomic_disable=atomic_disable,
            privilege=privilege,
            generation=generation,
        )

    def map_many(
        self,
        va,
        page_size: PageSize,
        location,
        frame=0,
        *,
        read_only=False,
        atomic_disable=False,
        privilege=False,
        generation=0,
    ):
        """Map pages of one size, replacing what was mapped at the same addresses and size.

        Parameters
        ----------
        va : array of int
            Byte addresses, multiples of the page size.
        page_size : PageSize
            One size for all.
        location : Location or array of Location
            Where the pages are.
        frame : int or array of int
            GPU and HOST: frame number in units of 4 KB, a multiple of the page size. FLASH, HOST_KEPT and MIGRATING: page number or
            transfer set, below 2**40. Ignored for NONE and SPARSE.
        read_only, atomic_disable, privilege : bool or array of bool
            Permissions; in location words those to restore.
        generation : int or array of int
            Generation byte of location words.

        Raises
        ------
        ValueError
            For an address or frame that is not aligned or out of range, a 4 KB or 64 KB page inside a 2 MB
            page that is still mapped, or a 4 KB page under a 64 KB page that hides it.
        """
        page_size = PageSize(page_size)
        va = np.atleast_1d(np.asarray(va, dtype=_U64))
        n = len(va)
        if not n:
            return

        def spread(values, dtype):
            return np.broadcast_to(np.asarray(values).astype(dtype), (n,))

        location = spread(location, np.uint8)
        frame = spread(frame, _U64)
        generation = spread(generation, _U64)
        flags = {
            "read_only": spread(read_only, _U64),
            "atomic_disable": spread(atomic_disable, _U64),
            "privilege": spread(privilege, _U64),
        }
        if int(va.max()) >> VA_BITS or (va & _U64(page_size.bytes - 1)).any():
            bad = va[((va & _U64(page_size.bytes - 1)) != 0) | (va >= _U64(1 << VA_BITS))][0]
            raise ValueError(
                f"Virtual address of a {page_size.name} page must be a multiple of "
                f"{page_size.bytes:#x} below 2**{VA_BITS}, not {int(bad):#x}"
            )
        for where, bits in ((Location.GPU, VIDEO_FRAME_BITS), (Location.HOST, 46)):
            here = frame[location == where]
            wrong = (here >= _U64(1 << bits)) | (
                (here & _U64((page_size.bytes >> 12) - 1)) != 0
            )
            if wrong.any():
                raise ValueError(
                    f"Frame of a {page_size.name} page in {where.name} memory must be a multiple of "
                    f"{page_size.bytes >> 12} below 2**{bits}, not {int(here[wrong][0]):#x}"
                )

        words = np.zeros(n, dtype=_U64)
        for where in np.unique(location):
            where = Location(int(where))
            at = location == where
            own = {name: flag[at] for name, flag in flags.items()}
            if where == Location.GPU:
                words[at] = PTE.encode_many(
                    valid=1, aperture=PteAperture.VIDEO, address_vid=frame[at], **own
                )
            elif where == Location.HOST:
                words[at] = PTE.encode_many(
                    valid=1, aperture=PteAperture.SYSTEM_COHERENT, address_sys=frame[at], **own
                )
            elif where == Location.SPARSE:
                words[at] = PTE.encode(vol=1)
            else:
                form = LOCATION_2M if page_size == PageSize.SIZE_2M else LOCATION
                words[at] = form.encode_many(
                    state=_STATE[where],
                    page=0 if where == Location.NONE else frame[at],
                    generation=generation[at],
                    mark_2m=int(page_size == PageSize.SIZE_2M),
                    **{f"restore_{name}": flag for name, flag in own.items()},
                )

        if page_size == PageSize.SIZE_2M:
            address = self.entry_address(va, Level.PDE0)
            self._write(address, words)
            self._write(address + _U64(8), _U64(0))
            if len(self._tables) > len(va):
                for prefix in (va >> _U64(21)).tolist():
                    self._forget(prefix)
            else:
                gone = set((va >> _U64(21)).tolist())
                for level, prefix in list(self._tables):
                    if level in (Level.PT64K, Level.PT4K) and prefix in gone:
                        self._forget(prefix)
            return
        if page_size == PageSize.SIZE_64K:
            self._write(self.entry_address(va, Level.PT64K), words)
            return
        prefixes = np.unique(va >> _U64(21))
        hiding = [p for p in prefixes.tolist() if (Level.PT64K, p) in self._tables]
        if hiding:
            under = va[np.isin(va >> _U64(21), np.array(hiding, dtype=_U64))]
            covers = self._read(self.entry_address(under, Level.PT64K))
            if covers.any():
                raise ValueError(
                    f"Address {int(under[covers != 0][0]):#x} lies under a 64 KB entry; unmap that first"
                )
        self._write(self.entry_address(va, Level.PT4K), words)

    def _forget(self, prefix):
        """Drop the tables below a PDE0 entry that is written over."""
        self._tables.pop((Level.PT64K, prefix), None)
        self._tables.pop((Level.PT4K, prefix), None)

    def unmap(self, va: int, page_size: PageSize):
        """Clear the entry of `page_size` for `va`: state NONE in a page table, an invalid entry (fault PDE) in PDE0."""
        page_size = PageSize(page_size)
        if page_size == PageSize.SIZE_2M:
            self.poke(va, Level.PDE0, 0)
            self.poke(va, Level.PDE0, 0, half=1)
            self._forget(va >> 21)
        else:
            level = Level.PT64K if page_size == PageSize.SIZE_64K else Level.PT4K
            self.poke(va, level, 0)

    def image(self) -> TableImage:
        """Return a copy of the tables as memory holds them."""
        return self._image(self._words[: self._rows].copy())

    def _image(self, words):
        return TableImage(
            bases=_U64(self._base) + np.arange(self._rows, dtype=_U64) * _U64(_TABLE_BYTES),
            contents=words,
            root=self._base,
            root_aperture=self._aperture,
            pa_bits=self._pa_bits,
            memory_address_bits=self._memory_address_bits,
        )

    def translate(self, va: int, access: Access = Access.READ) -> Translation:
        """Walk the tables as they are now; see `TableImage.translate`."""
        return self._image(self._words[: self._rows]).translate(va, access)

    def translate_many(self, va, access=Access.READ) -> Translations:
        """Walk the tables as they are now; see `TableImage.translate_many`."""
        return self._image(self._words[: self._rows]).translate_many(va, access)

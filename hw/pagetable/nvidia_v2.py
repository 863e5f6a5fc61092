"""NVIDIA MMU version 2 (Pascal to Ada) with Pagetide's location extension.

49-bit virtual addresses, five levels, leaves of 4 KB, 64 KB and 2 MB. Bit positions follow NVIDIA's published
`dev_mmu` headers and the Pascal MMU format note. The location extension uses only words that the format calls
invalid, in bits that the format ignores:

* A *leaf location word* is a PTE with VALID=0, VOL=0, PRIV=0 (`LOCATION`). The zero word is state NONE: never touched.
* A *2 MB location word* stands in the low half of a dual PDE0 (`LOCATION_2M`). There the bits 2:1 of the leaf word are
  the aperture of the 64 KB table and must be 0, so that the state moves to 7:6, and bit 55 marks the word so
  that state NONE differs from a directory entry that is merely invalid. The other fields lie where the leaf word has them.

Rules where the format leaves room, all tested:

* A valid 64 KB PTE wins over the 4 KB table. So does a 64 KB location word whose state is not NONE. A 64 KB word of state
  NONE leads to the 4 KB table if there is one. VALID=0 with PRIV=1 ends the walk (fault PTE), whatever lies below;
  VALID=0 with VOL=1 ends it as sparse.
* VALID=0 with PRIV=1 is fault PTE in a 4 KB table too; PRIV outranks VOL.
* A location word with a bit of 7:3 or bit 55 set is malformed: fault PTE.
* Both apertures of a dual PDE0 invalid: VOL of the big half means sparse, else bit 55 a 2 MB location word, else fault PDE.
* The VALID bit set in PDE3, PDE2 or PDE1 asks for a page size that is not implemented: fault PDE_SIZE.
* A leaf whose address is not aligned to its size: PDE_SIZE. Address beyond the implemented width, of a leaf or of a
  table: REGION. Peer aperture: UNSUPPORTED_APERTURE. ENCRYPTED set: UNSUPPORTED_KIND. First cause named wins.
"""

from amaranth.lib import enum

from .fields import EntryFormat, Field

__all__ = [
    "LEVELS",
    "LOCATION",
    "LOCATION_2M",
    "PAGE_BITS",
    "PDE",
    "PDE0",
    "PTE",
    "VA_BITS",
    "VIDEO_FRAME_BITS",
    "VPN_BITS",
    "Access",
    "Level",
    "LocationState",
    "PageSize",
    "PdeAperture",
    "PteAperture",
    "Status",
    "location_status",
    "markdown",
]

VA_BITS = 49
"""Width of a virtual address in bits."""
PAGE_BITS = 12
"""log2 of the smallest page in bytes."""
VPN_BITS = VA_BITS - PAGE_BITS
"""Width of a virtual page number in 4 KB units."""
VIDEO_FRAME_BITS = 25
"""Width of a video-memory frame number in 4 KB units (ADDRESS_VID)."""


class PdeAperture(enum.IntEnum, shape=2):
    """Where the next table lies. Not the codes of `PteAperture`."""

    INVALID = 0
    VIDEO = 1
    SYSTEM_COHERENT = 2
    SYSTEM_NONCOHERENT = 3


class PteAperture(enum.IntEnum, shape=2):
    """Where a page lies. Not the codes of `PdeAperture`."""

    VIDEO = 0
    PEER = 1
    SYSTEM_COHERENT = 2
    SYSTEM_NONCOHERENT = 3


class LocationState(enum.IntEnum, shape=2):
    """Where a page without a valid entry is."""

    NONE = 0
    FLASH = 1
    HOST_KEPT = 2
    MIGRATING = 3


class PageSize(enum.IntEnum, shape=2):
    """Leaf sizes."""

    SIZE_4K = 0
    SIZE_64K = 1
    SIZE_2M = 2

    @property
    def bytes(self) -> int:
        """Size in bytes."""
        return 1 << self.shift

    @property
    def shift(self) -> int:
        """log2 of the size in bytes."""
        return (12, 16, 21)[self.value]


class Access(enum.IntEnum, shape=2):
    """Intent of an access; codes of NVIDIA's fault packet (ACCESS_TYPE)."""

    READ = 0
    WRITE = 1
    ATOMIC = 2
    PREFETCH = 3


class Status(enum.IntEnum, shape=5):
    """Outcome of a translation.

    0x00 to 0x0F are NVIDIA's FAULT_TYPE codes; 0x10 and up are ours: OK, SPARSE (reads give zero, writes are
    dropped), BUS_ERROR (a table read failed), and 0x18 plus `LocationState` for pages without a valid entry.
    """

    PDE = 0x00
    PDE_SIZE = 0x01
    PTE = 0x02
    VA_LIMIT = 0x03
    UNBOUND_INST_BLOCK = 0x04
    PRIV = 0x05
    RO = 0x06
    UNSUPPORTED_APERTURE = 0x0A
    UNSUPPORTED_KIND = 0x0C
    REGION = 0x0D
    ATOMIC = 0x0F
    OK = 0x10
    SPARSE = 0x11
    BUS_ERROR = 0x12
    NOT_RESIDENT = 0x18
    FLASH = 0x19
    HOST_KEPT = 0x1A
    MIGRATING = 0x1B


def location_status(state: int) -> Status:
    """Return the status that a location word of `state` gives."""
    return Status(Status.NOT_RESIDENT + LocationState(state))


class Level(enum.IntEnum, shape=3):
    """Tables in the order in which a walk reads them; PT4K_AFTER_64K is the 4 KB table read after a 64 KB entry."""

    PDE3 = 0
    PDE2 = 1
    PDE1 = 2
    PDE0 = 3
    PT64K = 4
    PT4K = 5
    PT4K_AFTER_64K = 6

    @property
    def reads(self) -> int:
        """Table reads done when the walk ends at this level."""
        return (1, 2, 3, 4, 5, 5, 6)[self.value]


LEVELS: dict[Level, tuple[int, int, int]] = {
    Level.PDE3: (47, 2, 3),
    Level.PDE2: (38, 9, 3),
    Level.PDE1: (29, 9, 3),
    Level.PDE0: (21, 8, 4),
    Level.PT64K: (16, 5, 3),
    Level.PT4K: (12, 9, 3),
    Level.PT4K_AFTER_64K: (12, 9, 3),
}
"""For each level: lowest VA bit of its index, index width in bits, log2 of the entry size in bytes."""

_PDE_VALID = Field("is_pte", 0, 1, "0 for a directory entry; 1 makes the entry a leaf.")

PDE = EntryFormat(
    "NVIDIA v2 PDE, levels 3 to 1",
    64,
    [
        _PDE_VALID,
        Field("aperture", 1, 2, "Where the next table lies.", PdeAperture),
        Field("vol", 3, 1, "Volatile; with aperture 0: sparse."),
        Field("no_ats", 5, 1, "No address translation service (Volta and later); ignored."),
        Field("address_sys", 8, 46, "PA[57:12] of the next table in system memory."),
        Field("address_vid", 8, 25, "PA[36:12] of the next table in video memory."),
    ],
)

PDE0 = EntryFormat(
    "NVIDIA v2 dual PDE0",
    128,
    [
        Field("is_pte", 0, 1, "1: the low 64 bits are a 2 MB PTE."),
        Field("aperture_big", 1, 2, "Where the 64 KB table lies.", PdeAperture),
        Field("vol_big", 3, 1, "Volatile; with both apertures 0: sparse."),
        Field("no_ats", 5, 1, "No address translation service (Volta and later); ignored."),
        Field("address_big_sys", 4, 50, "PA[57:8] of the 64 KB table in system memory (shift 8)."),
        Field("address_big_vid", 4, 29, "PA[36:8] of the 64 KB table in video memory (shift 8)."),
        Field("aperture_small", 65, 2, "Where the 4 KB table lies.", PdeAperture),
        Field("vol_small", 67, 1, "Volatile."),
        Field("address_small_sys", 72, 46, "PA[57:12] of the 4 KB table in system memory."),
        Field("address_small_vid", 72, 25, "PA[36:12] of the 4 KB table in video memory."),
    ],
)

PTE = EntryFormat(
    "NVIDIA v2 PTE (4 KB, 64 KB, 2 MB)",
    64,
    [
        Field("valid", 0, 1, "1: the entry maps a page."),
        Field("aperture", 1, 2, "Where the page lies.", PteAperture),
        Field("vol", 3, 1, "Not cached in L2; with valid 0: sparse."),
        Field("encrypted", 4, 1, "Must be 0."),
        Field("privilege", 5, 1, "User access faults; with valid 0: nothing mapped here or below."),
        Field("read_only", 6, 1, "Writes and atomics fault."),
        Field("atomic_disable", 7, 1, "Atomics fault."),
        Field("address_sys", 8, 46, "PA[57:12] in system memory."),
        Field("address_vid", 8, 25, "PA[36:12] in video memory."),
        Field("vid_peer", 33, 3, "Peer id; ignored unless the aperture is PEER."),
        Field("kind", 56, 8, "Memory kind; not decoded."),
    ],
)

_RESTORE = [
    Field("restore_read_only", 8, 1, "READ_ONLY to set when the page is mapped again."),
    Field("restore_atomic_disable", 9, 1, "ATOMIC_DISABLE to set when the page is mapped again."),
    Field("restore_privilege", 10, 1, "PRIVILEGE to set when the page is mapped again."),
    Field("hot", 11, 1, "Hint: fetch first."),
    Field("page", 12, 40, "Flash page number, or host frame (4 KB units), or transfer set while migrating."),
    Field("device", 52, 3, "Flash device or namespace."),
]
_GENERATION = Field("generation", 56, 8, "Counts moves of the flash page, against stale readers.")

LOCATION = EntryFormat(
    "Location word (invalid PTE)",
    64,
    [
        Field("valid", 0, 1, "0."),
        Field("state", 1, 2, "Where the page is.", LocationState),
        Field("zero", 3, 5, "0: keeps the format's meanings of VOL and PRIV free."),
        *_RESTORE,
        Field("mark_2m", 55, 1, "0 in a leaf word."),
        _GENERATION,
    ],
)

LOCATION_2M = EntryFormat(
    "Location word of a whole 2 MB page (low half of the dual PDE0)",
    64,
    [
        Field("is_pte", 0, 1, "0."),
        Field("aperture_big", 1, 2, "0: no 64 KB table."),
        Field("vol_big", 3, 1, "0: not sparse."),
        Field("zero", 4, 2, "0."),
        Field("state", 6, 2, "Where the page is.", LocationState),
        *_RESTORE,
        Field("mark_2m", 55, 1, "1: this is a location word and no merely invalid directory entry."),
        _GENERATION,
    ],
)


def markdown() -> str:
    """Return the documentation tables (Markdown) of all entry formats."""
    return "\n".join(f.markdown() for f in (PDE, PDE0, PTE, LOCATION, LOCATION_2M))

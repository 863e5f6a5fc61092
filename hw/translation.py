"""Payloads that travel between requesters, L1 TLBs and the walker."""

from amaranth.hdl import unsigned
from amaranth.lib import data, enum

from .pagetable.nvidia_v2 import (
    VA_BITS,
    VPN_BITS,
    Access,
    PageSize,
    PdeAperture,
    PteAperture,
    Status,
)

__all__ = [
    "FLASH_PAGE_BITS",
    "InvalidateRequest",
    "InvalidateScope",
    "RootLayout",
    "TranslationRequest",
    "TranslationResponse",
    "WalkRequest",
    "WalkResponse",
]

FLASH_PAGE_BITS = 40
"""Width of a flash page number (4 KB units) in a location word."""


class TranslationRequest(data.StructLayout):
    """One access to translate.

    Fields
    ------
    id : unsigned(id_bits)
        Chosen by the requester and handed back with the response. It need not be unique, but responses come out of order.
    va : unsigned(49)
        Virtual byte address.
    access : Access
        Intent, checked against the entry's permissions.
    asid : unsigned(asid_bits)
        Address space; part of the tag in every cache.
    """

    def __init__(self, *, id_bits, asid_bits):
        super().__init__(
            {
                "id": unsigned(id_bits),
                "va": unsigned(VA_BITS),
                "access": Access,
                "asid": unsigned(asid_bits),
            }
        )


class TranslationResponse(data.FlexibleLayout):
    """The one answer to a `TranslationRequest`.

    Fields
    ------
    id : unsigned(id_bits)
        As in the request.
    status : Status
        OK, SPARSE, a fault, or where the page is instead.
    page_size : PageSize
        Size of the leaf; 0 if there is none.
    aperture : PteAperture
        Where the page lies; 0 unless `status` is OK.
    hit : unsigned(1)
        1 if the L1 TLB held the entry when the request was looked up.
    pa : unsigned(pa_bits)
        Physical byte address if `status` is OK. 0 for a fault or SPARSE.
    flash_page : unsigned(40)
        **Overlays `pa`** (same least significant bit). For FLASH, HOST_KEPT and MIGRATING: page number of the
        location word, that of the leaf's first 4 KB and not of the address asked for.
    """

    def __init__(self, *, id_bits, pa_bits):
        shapes = {
            "id": unsigned(id_bits),
            "status": Status,
            "page_size": PageSize,
            "aperture": PteAperture,
            "hit": unsigned(1),
        }
        fields, offset = {}, 0
        for name, shape in shapes.items():
            width = unsigned(id_bits).width if name == "id" else data.Field(shape, 0).width
            fields[name] = data.Field(shape, offset)
            offset += width
        fields["pa"] = data.Field(unsigned(pa_bits), offset)
        fields["flash_page"] = data.Field(unsigned(FLASH_PAGE_BITS), offset)
        super().__init__(offset + max(pa_bits, FLASH_PAGE_BITS), fields)


class WalkRequest(data.StructLayout):
    """A walk to do: `tag` comes back with the answer, `vpn` is the virtual page number in 4 KB units."""

    def __init__(self, *, tag_bits):
        super().__init__({"tag": unsigned(tag_bits), "vpn": unsigned(VPN_BITS)})


class WalkResponse(data.StructLayout):
    """The one answer to a `WalkRequest`.

    Fields
    ------
    tag : unsigned(tag_bits)
        As in the request.
    status : Status
        OK, SPARSE, a walk fault or a location; never a permission fault, for the walker does not know who asks.
    page_size : PageSize
        Size of the leaf (or location word).
    aperture : PteAperture
        Of the leaf, if OK.
    volatile, privilege, read_only, atomic_disable : unsigned(1)
        Of the leaf, if OK.
    frame : unsigned(max(pa_bits - 12, 40))
        Physical frame (4 KB units) if OK; page number of the location word if FLASH, HOST_KEPT or MIGRATING; else 0.
    levels : unsigned(3)
        Table reads done, 0 to 6.
    word : unsigned(64)
        The last table word as read: of a location word, this carries generation and the rest. 0 for BUS_ERROR and early
        faults.
    """

    def __init__(self, *, tag_bits, pa_bits):
        super().__init__(
            {
                "tag": unsigned(tag_bits),
                "status": Status,
                "page_size": PageSize,
                "aperture": PteAperture,
                "volatile": unsigned(1),
                "privilege": unsigned(1),
                "read_only": unsigned(1),
                "atomic_disable": unsigned(1),
                "frame": unsigned(max(pa_bits - 12, FLASH_PAGE_BITS)),
                "levels": unsigned(3),
                "word": unsigned(64),
            }
        )


class RootLayout(data.StructLayout):
    """Where the root table (PDE3) is.

    Fields
    ------
    address : unsigned(memory_address_bits)
        Byte address; the low 12 bits are ignored.
    aperture : PdeAperture
        Of the root table. INVALID makes every walk end with UNBOUND_INST_BLOCK.
    va_limit : unsigned(37)
        First virtual page (4 KB units) beyond the limit; walks at or above it end with VA_LIMIT. 0: no limit.
    """

    def __init__(self, *, memory_address_bits):
        super().__init__(
            {
                "address": unsigned(memory_address_bits),
                "aperture": PdeAperture,
                "va_limit": unsigned(VPN_BITS),
            }
        )


class InvalidateScope(enum.IntEnum, shape=2):
    """What to invalidate. Codes not named here invalidate everything, which is always safe."""

    ALL = 0


class InvalidateRequest(data.StructLayout):
    """An invalidation: `scope`."""

    def __init__(self):
        super().__init__({"scope": InvalidateScope})



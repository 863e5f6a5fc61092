import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagetide.hw.pagetable.nvidia_v2 import (
    LOCATION,
    LOCATION_2M,
    PDE,
    PDE0,
    PTE,
    Access,
    Level,
    LocationState,
    PageSize,
    PdeAperture,
    PteAperture,
    Status,
    location_status,
)
from pagetide.hw.pagetable.randomised import random_table
from pagetide.hw.pagetable.table import Location, PageTable, Translation

BASE = 0x1_2345_6780_0000
STATUS = {
    Location.GPU: Status.OK,
    Location.HOST: Status.OK,
    Location.NONE: Status.NOT_RESIDENT,
    Location.FLASH: Status.FLASH,
    Location.HOST_KEPT: Status.HOST_KEPT,
    Location.MIGRATING: Status.MIGRATING,
    Location.SPARSE: Status.SPARSE,
}


@pytest.mark.parametrize("size", PageSize)
@pytest.mark.parametrize("location", Location)
@pytest.mark.parametrize("aperture", [PdeAperture.VIDEO, PdeAperture.SYSTEM_COHERENT])
def test_every_size_and_location(size, location, aperture):
    table = PageTable(aperture=aperture)
    frame = 0x1_2340 << 9 & 0x1FF_FFFF
    table.map(BASE, size, location, frame, generation=0x5A)
    for offset in (0, 0xABC, size.bytes - 1):
        answer = table.translate(BASE + offset)
        assert answer.status == STATUS[location]
        assert answer.levels == (4 if size == PageSize.SIZE_2M else 5)
        if answer.status == Status.OK:
            assert answer.pa == (frame << 12) + offset
            assert answer.page_size == size
            assert answer.aperture == (
                PteAperture.VIDEO if location == Location.GPU else PteAperture.SYSTEM_COHERENT
            )
            assert answer.flash_page == 0
        elif answer.status == Status.SPARSE:
            assert answer == Translation(Status.SPARSE, levels=answer.levels)
        else:
            assert answer.page_size == size
            assert answer.generation == 0x5A
            assert answer.flash_page == (0 if location == Location.NONE else frame)
            assert answer.pa == 0
    outside = table.translate(BASE + size.bytes)
    assert outside.status == (Status.PDE if size == PageSize.SIZE_2M else Status.NOT_RESIDENT)


@pytest.mark.parametrize("size", PageSize)
@pytest.mark.parametrize("access", Access)
@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.parametrize("atomic_disable", [False, True])
@pytest.mark.parametrize("privilege", [False, True])
def test_permissions(size, access, read_only, atomic_disable, privilege):
    table = PageTable()
    table.map(
        BASE,
        size,
        Location.GPU,
        read_only=read_only,
        atomic_disable=atomic_disable,
        privilege=privilege,
    )
    expected = Status.OK
    if atomic_disable and access == Access.ATOMIC:
        expected = Status.ATOMIC
    if read_only and access in (Access.WRITE, Access.ATOMIC):
        expected = Status.RO
    if privilege:
        expected = Status.PRIV
    assert table.translate(BASE, access).status == expected
    assert table.translate_many([BASE], access)[0] == table.translate(BASE, access)


def _dual(low64, word4k):
    """Region with a 64 KB word and a 4 KB word for the same address."""
    table = PageTable()
    table.poke(BASE, Level.PT4K, word4k)
    table.poke(BASE, Level.PT64K, low64)
    return table.translate(BASE)


MAP_4K = PTE.encode(valid=1, address_vid=0x123)
MAP_64K = PTE.encode(valid=1, address_vid=0x450)


def test_dual_valid_64k_wins_over_4k():
    answer = _dual(MAP_64K, MAP_4K)
    assert (answer.pa, answer.page_size, answer.levels) == (0x450000, PageSize.SIZE_64K, 5)


def test_dual_none_64k_leads_to_4k():
    answer = _dual(0, MAP_4K)
    assert (answer.pa, answer.page_size, answer.levels) == (0x123000, PageSize.SIZE_4K, 6)


def test_dual_64k_with_priv_hides_4k():
    assert _dual(PTE.encode(privilege=1), MAP_4K) == Translation(Status.PTE, levels=5)


def test_dual_64k_with_priv_and_vol_is_unmapped_not_sparse():
    assert _dual(PTE.encode(privilege=1, vol=1), MAP_4K).status == Status.PTE


def test_dual_sparse_64k_hides_4k():
    assert _dual(PTE.encode(vol=1), MAP_4K) == Translation(Status.SPARSE, levels=5)


@pytest.mark.parametrize("state", [s for s in LocationState if s != LocationState.NONE])
def test_dual_64k_location_word_wins_over_4k(state):
    answer = _dual(LOCATION.encode(state=state, page=0x77), MAP_4K)
    assert (answer.status, answer.flash_page, answer.levels) == (location_status(state), 0x77, 5)


def test_dual_faulting_64k_leaf_does_not_fall_through():
    assert _dual(PTE.encode(valid=1, address_vid=0x451), MAP_4K).status == Status.PDE_SIZE


def test_dual_4k_table_only():
    table = PageTable()
    table.poke(BASE, Level.PT4K, MAP_4K)
    assert table.translate(BASE).levels == 5


def test_64k_table_pointer_has_shift_8():
    table = PageTable()
    for region in range(3):
        table.map(BASE + region * (2 << 20), PageSize.SIZE_64K, Location.GPU, 0x100 << 4)
    addresses = {int(table.entry_address(BASE + r * (2 << 20), Level.PT64K)) for r in range(3)}
    places = sorted(address & ~0xFF for address in addresses)
    assert [b - a for a, b in itertools.pairwise(places)] == [256, 256]
    entry = int(table.entry_address(BASE + (2 << 20), Level.PDE0))
    low = table.image().read(entry)
    assert PDE0.decode(low)["address_big_vid"] << 8 == places[1]
    assert table.translate(BASE + (2 << 20)).status == Status.OK


def _pde0(low, high=0):
    table = PageTable()
    table.poke(BASE, Level.PDE0, low)
    table.poke(BASE, Level.PDE0, high, half=1)
    return table.translate(BASE)


def test_pde0_sparse_is_ruled_by_the_big_half():
    assert _pde0(PDE0.encode(vol_big=1)).status == Status.SPARSE
    assert _pde0(0, PDE0.encode(vol_small=1) >> 64).status == Status.PDE


def test_pde0_vol_is_no_sparse_if_a_pointer_is_valid():
    table = PageTable()
    table.map(BASE, PageSize.SIZE_4K, Location.GPU, 9)
    entry = table.image().read(int(table.entry_address(BASE, Level.PDE0)))
    table.poke(BASE, Level.PDE0, entry | PDE0.encode(vol_big=1))
    assert table.translate(BASE).status == Status.OK


@pytest.mark.parametrize("state", LocationState)
def test_pde0_location_word_of_2m(state):
    word = LOCATION_2M.encode(state=state, page=0x12_3456_789A, generation=3, mark_2m=1)
    answer = _pde0(word)
    assert answer.status == location_status(state)
    assert answer.page_size == PageSize.SIZE_2M
    assert answer.flash_page == (0x12_3456_789A if state else 0)


def test_pde0_without_mark_is_an_invalid_directory_entry():
    assert _pde0(0).status == Status.PDE
    assert _pde0(LOCATION_2M.encode(state=1, page=5)).status == Status.PDE


@pytest.mark.parametrize("bit", [4, 5])
def test_pde0_location_word_with_reserved_bit_is_no_location(bit):
    assert _pde0(LOCATION_2M.encode(mark_2m=1, state=1) | 1 << bit).status == Status.PDE


@pytest.mark.parametrize("bit", [4, 6, 7, 55])
@pytest.mark.parametrize("level", [Level.PT64K, Level.PT4K])
def test_location_word_with_reserved_bit_is_fault_pte(bit, level):
    table = PageTable()
    table.poke(BASE, level, LOCATION.encode(state=1, page=5) | 1 << bit)
    assert table.translate(BASE) == Translation(Status.PTE, levels=5)


@pytest.mark.parametrize("level", [Level.PDE3, Level.PDE2, Level.PDE1])
def test_directory_entries_that_end_the_walk(level):
    reads = level.reads
    for word, status in [
        (0, Status.PDE),
        (PDE.encode(vol=1), Status.SPARSE),
        (PDE.encode(is_pte=1, aperture=1, address_vid=5), Status.PDE_SIZE),
        (PDE.encode(aperture=2, address_sys=1 << 35), Status.REGION),
    ]:
        table = PageTable()
        table.poke(BASE, level, word)
        assert table.translate(BASE) == Translation(status, levels=reads)


def test_pde_aperture_code_is_not_the_ptes():
    """Code 1 is video memory in a directory entry and peer memory in a page entry."""
    table = PageTable()
    table.poke(BASE, Level.PT4K, PTE.encode(valid=1, aperture=1, address_vid=5))
    assert table.translate(BASE).status == Status.UNSUPPORTED_APERTURE
    table.poke(BASE, Level.PT4K, PTE.encode(valid=1, aperture=0, address_vid=5))
    assert table.translate(BASE).status == Status.OK


@pytest.mark.parametrize(
    ("level", "step"), [(Level.PT64K, 1), (Level.PT64K, 8), (Level.PDE0, 1), (Level.PDE0, 0x100)]
)
def test_misaligned_leaf(level, step):
    table = PageTable()
    table.poke(BASE, level, PTE.encode(valid=1, address_vid=0x1000 + step))
    assert table.translate(BASE).status == Status.PDE_SIZE


def test_leaf_beyond_the_implemented_width():
    for pa_bits in (40, 47, 58):
        table = PageTable(pa_bits=pa_bits)
        word = PTE.encode(valid=1, aperture=2, address_sys=(1 << (pa_bits - 12)) - 1)
        table.poke(BASE, Level.PT4K, word)
        assert table.translate(BASE).status == Status.OK
        if pa_bits < 58:
            word = PTE.encode(valid=1, aperture=2, address_sys=1 << (pa_bits - 12))
            table.poke(BASE, Level.PT4K, word)
            assert table.translate(BASE).status == Status.REGION


def test_causes_have_a_fixed_priority():
    """Each cause of a bad leaf, strongest first; with causes k, k+1, ... present, k is reported."""
    causes = [
        (Status.PDE_SIZE, 1 << 8),
        (Status.REGION, 1 << 53),
        (Status.UNSUPPORTED_KIND, PTE.encode(encrypted=1)),
        (Status.PRIV, PTE.encode(privilege=1)),
        (Status.RO, PTE.encode(read_only=1)),
        (Status.ATOMIC, PTE.encode(atomic_disable=1)),
    ]
    for first in range(len(causes)):
        table = PageTable()
        word = PTE.encode(valid=1, aperture=PteAperture.SYSTEM_COHERENT)
        for _, bits in causes[first:]:
            word |= bits
        table.poke(BASE, Level.PDE0, word)
        assert table.translate(BASE, Access.ATOMIC).status == causes[first][0]
    table = PageTable()
    table.poke(BASE, Level.PDE0, PTE.encode(valid=1, aperture=1, encrypted=1, privilege=1))
    assert table.translate(BASE).status == Status.UNSUPPORTED_APERTURE


def test_video_address_ignores_peer_and_upper_bits():
    table = PageTable()
    word = PTE.encode(valid=1, address_vid=0x123) | 7 << 33 | 0xFF << 36
    table.poke(BASE, Level.PT4K, word)
    assert table.translate(BASE).pa == 0x123000


def test_root_states():
    import dataclasses

    table = PageTable()
    table.map(BASE, PageSize.SIZE_2M, Location.GPU)
    image = table.image()
    unbound = dataclasses.replace(image, root_aperture=PdeAperture.INVALID)
    assert unbound.translate(BASE) == Translation(Status.UNBOUND_INST_BLOCK)
    assert unbound.translate_many([BASE])[0] == Translation(Status.UNBOUND_INST_BLOCK)
    limited = dataclasses.replace(image, va_limit=(BASE >> 12) + 1)
    for va, status in [(BASE + 0xFFF, Status.OK), (BASE + 0x1000, Status.VA_LIMIT)]:
        assert limited.translate(va).status == status
        assert limited.translate_many([va])[0].status == status


def test_reads_outside_the_image_are_bus_errors():
    table = PageTable()
    table.poke(BASE, Level.PDE2, PDE.encode(aperture=1, address_vid=0x1_0000))
    assert table.translate(BASE) == Translation(Status.BUS_ERROR, levels=3)


def test_image_is_sorted_and_a_copy():
    table = PageTable(base=0x40_0000)
    table.map(BASE, PageSize.SIZE_4K, Location.GPU, 1)
    image = table.image()
    table.unmap(BASE, PageSize.SIZE_4K)
    assert image.translate(BASE).status == Status.OK
    assert table.translate(BASE).status == Status.NOT_RESIDENT
    assert (np.diff(image.bases) > 0).all()
    assert image.contents.shape == (len(image.bases), 512)
    assert image.contents.dtype == image.bases.dtype == np.uint64
    assert image.root == table.root == 0x40_0000
    assert table.bytes == 4096 * len(image.bases)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 1 << 32))
def test_vectorised_walk_agrees_with_scalar_walk(seed):
    sample = random_table(seed, regions=12, malformed=0.3)
    sample.remap(4)
    va = sample.addresses(60)
    access = sample.rng.integers(0, 4, 60)
    many = sample.table.translate_many(va, access)
    image = sample.table.image()
    for i in range(60):
        assert many[i] == image.translate(int(va[i]), Access(int(access[i])))


@settings(max_examples=60, deadline=None)
@given(
    pages=st.lists(
        st.tuples(
            st.integers(0, 3),
            st.integers(0, 31),
            st.integers(0, 15),
            st.sampled_from(PageSize),
            st.sampled_from(Location),
            st.integers(0, (1 << 16) - 1),
        ),
        max_size=30,
    )
)
def test_builder_agrees_with_walk(pages):
    """What `map` was told is what a walk finds, whatever was mapped before."""
    table = PageTable()
    expected = {}  # 4 KB page -> (size, location, first page, frame)
    for region, big, small, size, location, number in pages:
        va = BASE + (region << 21)
        if size != PageSize.SIZE_2M:
            va += big << 16
        if size == PageSize.SIZE_4K:
            va += small << 12
        frame = number << 9
        try:
            table.map(va, size, location, frame)
        except ValueError:
            continue
        for page in range(va >> 12, (va + size.bytes) >> 12):
            if size == PageSize.SIZE_64K and location == Location.NONE:
                # State NONE shows what a 4 KB table has below, if there is one.
                below = expected.get(page)
                if below and below[0] == PageSize.SIZE_4K:
                    continue
            if size == PageSize.SIZE_64K:
                old = expected.get(page)
                hidden = old[4] if old and old[0] != PageSize.SIZE_2M else None
                if old and old[0] == PageSize.SIZE_4K:
                    hidden = old
                if location == Location.NONE and hidden:
                    expected[page] = hidden
                    continue
                expected[page] = (size, location, va >> 12, frame, hidden)
            else:
                expected[page] = (size, location, va >> 12, frame, None)
    for page, (_, location, first, frame, _hidden) in list(expected.items())[::17]:
        answer = table.translate(page << 12)
        assert answer.status == STATUS[location]
        if answer.status == Status.OK:
            assert answer.pa >> 12 == frame + page - first
        elif location not in (Location.NONE, Location.SPARSE):
            assert answer.flash_page == frame


def test_bulk_mapping_equals_single_mappings():
    rng = np.random.default_rng(5)
    n = 300
    va = BASE + (rng.permutation(4 * 512)[:n] << 12)
    location = rng.integers(0, len(Location), n)
    frame = rng.integers(0, 1 << 25, n)
    read_only = rng.random(n) < 0.5
    bulk, single = PageTable(), PageTable()
    # Same order of tables, so that the images are equal word for word.
    order = np.argsort(va >> 21, kind="stable")
    va, location, frame, read_only = va[order], location[order], frame[order], read_only[order]
    bulk.map_many(va, PageSize.SIZE_4K, location, frame, read_only=read_only)
    for i in range(n):
        single.map(
            int(va[i]),
            PageSize.SIZE_4K,
            Location(int(location[i])),
            int(frame[i]),
            read_only=bool(read_only[i]),
        )
    assert (bulk.image().contents == single.image().contents).all()


def test_hundred_thousand_2m_pages():
    n = 100_000
    va = np.arange(n, dtype=np.uint64) << np.uint64(21)
    table = PageTable()
    frames = (np.arange(n, dtype=np.uint64) % np.uint64(1 << 16)) << np.uint64(9)
    table.map_many(va, PageSize.SIZE_2M, Location.GPU, frames)
    answers = table.translate_many(va + np.uint64(0x12345))
    assert (answers.status == Status.OK).all()
    assert (answers.pa == (frames << np.uint64(12)) + np.uint64(0x12345)).all()
    assert (answers.levels == 4).all()


def test_2m_page_takes_the_place_of_smaller_ones_and_back():
    table = PageTable()
    table.map(BASE, PageSize.SIZE_4K, Location.GPU, 5)
    table.map(BASE, PageSize.SIZE_2M, Location.GPU, 512)
    assert table.translate(BASE).pa == 512 << 12
    with pytest.raises(ValueError, match=f"^Address {BASE:#x} is mapped as a 2 MB page; unmap it"):
        table.map(BASE, PageSize.SIZE_4K, Location.GPU, 5)
    table.unmap(BASE, PageSize.SIZE_2M)
    table.map(BASE, PageSize.SIZE_64K, Location.GPU, 16)
    assert table.translate(BASE).pa == 16 << 12
    with pytest.raises(
        ValueError, match=f"^Address {BASE:#x} lies under a 64 KB entry; unmap that"
    ):
        table.map(BASE, PageSize.SIZE_4K, Location.GPU, 5)


def test_refusals():
    with pytest.raises(
        ValueError,
        match=r"^Base of the page tables must be a multiple of 4096 below 2\*\*47, not 0x10$",
    ):
        PageTable(base=0x10)
    with pytest.raises(ValueError, match=r"^Aperture of the page tables must not be INVALID$"):
        PageTable(aperture=PdeAperture.INVALID)
    table = PageTable()
    with pytest.raises(
        ValueError,
        match=r"^Virtual address of a SIZE_2M page must be a multiple of 0x200000 below 2\*\*49, "
        r"not 0x1000$",
    ):
        table.map(0x1000, PageSize.SIZE_2M, Location.GPU)
    with pytest.raises(
        ValueError,
        match=r"^Frame of a SIZE_64K page in GPU memory must be a multiple of 16 below 2\*\*25, "
        r"not 0x1$",
    ):
        table.map(0, PageSize.SIZE_64K, Location.GPU, 1)
    with pytest.raises(
        ValueError,
        match=r"^Frame of a SIZE_4K page in HOST memory must be a multiple of 1 below 2\*\*46, "
        r"not 0x400000000000$",
    ):
        table.map(0, PageSize.SIZE_4K, Location.HOST, 1 << 46)
    with pytest.raises(
        ValueError, match=r"^Virtual address must fit 49 bits, not 0x2000000000000$"
    ):
        table.translate(1 << 49)
    with pytest.raises(
        ValueError, match=r"^Virtual addresses must fit 49 bits, not 0x2000000000000"
    ):
        table.translate_many([1 << 49])
    table.poke(BASE, Level.PDE1, PDE.encode(is_pte=1))
    with pytest.raises(ValueError, match=r"has a leaf in its PDE1; unmap it first$"):
        table.map(BASE, PageSize.SIZE_2M, Location.GPU)

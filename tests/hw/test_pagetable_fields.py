import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagetide.hw.pagetable import nvidia_v2
from pagetide.hw.pagetable.fields import EntryFormat, Field
from pagetide.hw.pagetable.nvidia_v2 import LOCATION, LOCATION_2M, PDE, PDE0, PTE

FORMATS = [PDE, PDE0, PTE, LOCATION, LOCATION_2M]


@st.composite
def format_and_values(draw):
    form = draw(st.sampled_from(FORMATS))
    values, used = {}, 0
    for field in draw(st.permutations(list(form.fields.values()))):
        mask = field.mask << field.lsb
        if not used & mask and draw(st.booleans()):
            values[field.name] = draw(st.integers(0, field.mask))
            used |= mask
    return form, values


@given(format_and_values())
def test_encode_decode_round_trip(case):
    form, values = case
    word = form.encode(**values)
    decoded = form.decode(word)
    assert {name: decoded[name] for name in values} == values
    # Nothing else is set.
    again = 0
    for name, value in values.items():
        again |= value << form.fields[name].lsb
    assert word == again


@given(format_and_values())
def test_vectorised_encode_and_decode_agree_with_scalar(case):
    form, values = case
    words = form.encode_many(**{k: np.array([v, 0], dtype=np.uint64) for k, v in values.items()})
    scalar = form.encode(**values)
    if not values:
        return
    if form.width == 128:
        assert int(words[0, 0]) | int(words[0, 1]) << 64 == scalar
    else:
        assert int(words[0]) == scalar
    decoded = form.decode_many(words)
    assert {k: int(v[0]) for k, v in decoded.items()} == form.decode(scalar)
    assert all(int(v[1]) == 0 for v in decoded.values())


@given(format_and_values())
def test_amaranth_layout_puts_fields_where_encode_does(case):
    form, values = case
    for name, value in values.items():
        field = form.layout[name]
        assert (form.encode(**{name: value}) >> field.offset) & ((1 << field.width) - 1) == value
        assert form.encode(**{name: value}) >> (field.offset + field.width) == 0
    assert form.layout.size == form.width


@pytest.mark.parametrize("form", FORMATS, ids=lambda f: f.name)
def test_markdown_names_every_field_once(form):
    text = form.markdown()
    rows = [line for line in text.splitlines() if line.startswith("| ") and "`" in line]
    assert len(rows) == len(form.fields)
    for field in form.fields.values():
        assert sum(f"| {field.bits} | `{field.name}` |" in row for row in rows) == 1
    assert text in nvidia_v2.markdown()


# Bit positions as NVIDIA publishes them; typed in again on purpose.
POSITIONS = {
    (PDE, "aperture"): (1, 2),
    (PDE, "vol"): (3, 1),
    (PDE, "address_sys"): (8, 46),
    (PDE, "address_vid"): (8, 25),
    (PDE0, "aperture_big"): (1, 2),
    (PDE0, "vol_big"): (3, 1),
    (PDE0, "address_big_sys"): (4, 50),
    (PDE0, "address_big_vid"): (4, 29),
    (PDE0, "aperture_small"): (65, 2),
    (PDE0, "vol_small"): (67, 1),
    (PDE0, "address_small_sys"): (72, 46),
    (PDE0, "address_small_vid"): (72, 25),
    (PTE, "valid"): (0, 1),
    (PTE, "aperture"): (1, 2),
    (PTE, "vol"): (3, 1),
    (PTE, "encrypted"): (4, 1),
    (PTE, "privilege"): (5, 1),
    (PTE, "read_only"): (6, 1),
    (PTE, "atomic_disable"): (7, 1),
    (PTE, "address_sys"): (8, 46),
    (PTE, "address_vid"): (8, 25),
    (PTE, "vid_peer"): (33, 3),
    (PTE, "kind"): (56, 8),
    (LOCATION, "state"): (1, 2),
    (LOCATION, "page"): (12, 40),
    (LOCATION, "generation"): (56, 8),
    (LOCATION_2M, "page"): (12, 40),
    (LOCATION_2M, "generation"): (56, 8),
}


@pytest.mark.parametrize(("key", "position"), POSITIONS.items(), ids=lambda k: str(k)[:40])
def test_bit_positions(key, position):
    form, name = key
    assert (form.fields[name].lsb, form.fields[name].width) == position


def test_apertures_of_pde_and_pte_differ():
    assert nvidia_v2.PdeAperture.VIDEO == 1
    assert nvidia_v2.PteAperture.VIDEO == 0
    assert nvidia_v2.PdeAperture.SYSTEM_COHERENT == nvidia_v2.PteAperture.SYSTEM_COHERENT == 2


def test_location_words_leave_the_formats_other_meanings_alone():
    for state in nvidia_v2.LocationState:
        word = LOCATION.encode(state=state, page=(1 << 40) - 1, generation=255, hot=1, device=7)
        pte = PTE.decode(word)
        assert (pte["valid"], pte["vol"], pte["privilege"]) == (0, 0, 0)
        word = LOCATION_2M.encode(state=state, page=(1 << 40) - 1, generation=255, mark_2m=1)
        pde0 = PDE0.decode(word)
        assert (pde0["is_pte"], pde0["aperture_big"], pde0["aperture_small"]) == (0, 0, 0)
        assert pde0["vol_big"] == 0


def test_encode_refuses_unknown_field():
    with pytest.raises(
        ValueError, match=r"^'NVIDIA v2 PDE, levels 3 to 1' has no field 'adress'; its"
    ):
        PDE.encode(adress=1)


def test_encode_refuses_value_that_does_not_fit():
    message = r"^Field 'vol' of 'NVIDIA v2 PTE \(4 KB, 64 KB, 2 MB\)' takes 0 to 0x1, not 0x2$"
    with pytest.raises(ValueError, match=message):
        PTE.encode(vol=2)
    with pytest.raises(ValueError, match=message):
        PTE.encode_many(vol=np.array([0, 2], dtype=np.uint64))


def test_encode_refuses_overlap():
    message = r"^Field 'address_vid' of .* overlaps another field that is given$"
    with pytest.raises(ValueError, match=message):
        PTE.encode(address_sys=1, address_vid=1)
    with pytest.raises(ValueError, match=message):
        PTE.encode_many(address_sys=1, address_vid=1)


def test_decode_refuses_wide_word():
    with pytest.raises(ValueError, match=r"is 64 bits wide, 0x1" + "0" * 16 + " does not fit$"):
        PTE.decode(1 << 64)


def test_format_refuses_bad_tables():
    with pytest.raises(ValueError, match=r"^Entry width must be 64 or 128 bits, not 32$"):
        EntryFormat("x", 32, [])
    with pytest.raises(ValueError, match=r"^Field 'a' of 'x' is defined twice$"):
        EntryFormat("x", 64, [Field("a", 0, 1, ""), Field("a", 1, 1, "")])
    with pytest.raises(
        ValueError,
        match=r"^Field 'a' must lie within one 64-bit word of the 128-bit entry, not at 64:63$",
    ):
        EntryFormat("x", 128, [Field("a", 63, 2, "")])

"""Quantities with units: what is read, what is refused and how, and texts that read back to the same value."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagetide.model.system import Engine, Gpu, Link, Ssd
from pagetide.model.units import format_bytes, format_seconds, parse_quantity


@pytest.mark.parametrize(
    ("text", "unit", "value"),
    [
        ("1 GB", "byte", 1e9),
        ("1 GiB", "byte", 2**30),
        ("40GiB", "byte", 40 * 2**30),
        (" 1.5 MiB ", "byte", 1.5 * 2**20),
        (".5 KiB", "byte", 512),
        ("2e3 bytes", "byte", 2000),
        ("-1 B", "byte", -1),
        ("100 MB/s", "byte / second", 1e8),
        ("100 MB / s", "byte / second", 1e8),
        ("1 byte per second", "byte / second", 1),
        ("8 Gbit/s", "byte / second", 1e9),
        ("45us", "picosecond", 45e6),
        ("45 µs", "picosecond", 45e6),
        ("45 microseconds", "picosecond", 45e6),
        ("1.2 GHz", "hertz", 1.2e9),
        ("1410 MHz", "hertz", 1.41e9),
    ],
)
def test_what_is_read(text: str, unit: str, value: float) -> None:
    assert parse_quantity(text, unit) == pytest.approx(value, rel=1e-15)


@pytest.mark.parametrize("value", [3, 3.5, True, None, [1], {"a": 1}])
def test_a_bare_value_has_no_unit(value: object) -> None:
    with pytest.raises(ValueError, match="has no unit; a size is needed, for instance '40 GiB'"):
        parse_quantity(value, "byte")


@pytest.mark.parametrize(
    ("text", "unit", "message"),
    [
        ("3 GHz", "byte", "'3 GHz' is not a size; write for instance '40 GiB'"),
        ("3 GB", "byte / second", "'3 GB' is not a bandwidth; write for instance '15.754 GB/s'"),
        ("3 GB/s", "picosecond", "'3 GB/s' is not a time; write for instance '45 us'"),
        ("3 ns", "hertz", "'3 ns' is not a frequency; write for instance '1.2 GHz'"),
        ("1e400 GiB", "byte", "'1e400 GiB' is not finite; a size is needed"),
        ("1e308 TiB", "byte", "'1e308 TiB' is not finite; a size is needed"),
    ],
)
def test_wrong_kind_or_too_large(text: str, unit: str, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        parse_quantity(text, unit)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    "text",
    [
        *("", " ", "=", "3", "GiB", "{} GiB", "'a' GiB", "x.y GiB", "3 foo", "nan GiB", "inf GiB"),
        *(
            "40 * 2 GiB",
            "40 % GiB",
            "1/0 GiB",
            "2**9999 GiB",
            "9**9**9**9 GiB",
            "1j GiB",
            "3 GiB +",
        ),
        *(
            "(3 GiB",
            "3 GiB)",
            "(" * 500,
            "[1,2] GiB",
            "5(2) GiB",
            "5 ± 2 GiB",
            "3;4 GiB",
            "3 GiB#x",
        ),
        *("4 GiB @ 3", "3 GiB 5", "1_0 GiB", "0x10 GiB", "٣ GiB", "3 \x00 GiB", "\ud800 GiB"),
        *("3 GiB ** 1", "1,5 GiB", "3 GiB/", "3 GB/s/s", "3 lambda", "3 degC"),
    ],
)
def test_anything_else_is_no_number_with_a_unit(text: str) -> None:
    """Only a number and a unit: an expression is neither evaluated nor half understood."""
    with pytest.raises(ValueError, match=r"is not (a number with a unit|a size)"):
        parse_quantity(text, "byte")


@settings(deadline=None)
@given(st.text(alphabet="0123456789.eE+-*/()[]{}'\"%#@=<>,;: _GiBMKbyteperscn\n\x00µ", max_size=14))
def test_any_text_is_a_finite_number_or_a_value_error(text: str) -> None:
    try:
        value = parse_quantity(text, "byte / second")
    except ValueError:
        return
    assert math.isfinite(value)


SIZES = st.one_of(
    st.integers(0, 1 << 53),
    st.integers(1, 4000).map(lambda n: n << 30),
    st.integers(1, 9000).map(lambda n: n * 10**9),
)


@settings(deadline=None)
@given(SIZES)
def test_the_text_of_a_size_reads_back(size: int) -> None:
    assert parse_quantity(format_bytes(size), "byte") == size


@settings(deadline=None)
@given(st.integers(0, 1 << 53))
def test_the_text_of_a_time_reads_back(time_ps: int) -> None:
    assert parse_quantity(format_seconds(time_ps), "picosecond") == time_ps


@settings(deadline=None)
@given(SIZES.filter(lambda n: n >= 4096), st.floats(1e6, 1e12), st.integers(0, 10**12))
def test_the_text_of_a_field_reads_back(size: int, rate: float, time_ps: int) -> None:
    """What a system writes to YAML is the same system, to the last bit."""
    for section in (
        Gpu(memory=format_bytes(size), clock=f"{rate!r} Hz"),
        Link(bandwidth=f"{rate!r} B/s", latency=f"{time_ps} ps"),
        Ssd(read_bandwidth=f"{rate!r} GB/s"),
        Engine(block=format_bytes(size)),
    ):
        assert type(section).model_validate(section.model_dump(mode="json")) == section


def test_texts_are_short() -> None:
    assert format_bytes(0) == "0 B"
    assert format_bytes(40 << 30) == "40 GiB"
    assert format_bytes(3_200_000_000_000) == "3.2 TB"
    assert format_bytes((1 << 40) + 1) == "1099511627777 B"
    assert format_seconds(0) == "0 s"
    assert format_seconds(16_000_000) == "16 us"
    assert format_seconds(1_500_000_000) == "1.5 ms"
    assert format_seconds(7) == "7 ps"
    assert Link(bandwidth="15.754 GB/s").model_dump(mode="json")["bandwidth"] == "15.754 GB/s"
    assert Gpu(clock="1.38 GHz").model_dump(mode="json")["clock"] == "1.38 GHz"

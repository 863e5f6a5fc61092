"""Files of columns: same content same bytes, whole or not at all, and damage told as `InputError` with the path."""

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pagetide.model.columnar import (
    atomic_write_bytes,
    load_columns,
    save_columns,
    text_column,
    text_from_column,
)
from pagetide.model.errors import InputError, did_you_mean

COLUMNS = {
    "a": np.arange(500, dtype=np.int64),
    "b": np.linspace(0, 1, 500),
    "c": np.array([True, False]),
}


def save(path: Path, *, kind: str = "thing", version: int = 1) -> bytes:
    save_columns(path, kind=kind, version=version, header={"name": "x"}, columns=COLUMNS)
    return path.read_bytes()


def load(path: Path):
    return load_columns(path, kind="thing", version=1, required=COLUMNS)


def test_round_trip_with_equal_bytes(tmp_path: Path) -> None:
    assert save(tmp_path / "a.npz") == save(tmp_path / "deep" / "er" / "b.npz")
    header, columns = load(tmp_path / "a.npz")
    assert header == {"name": "x", "version": 1}
    for name, column in COLUMNS.items():
        assert (columns[name] == column).all()
        assert columns[name].dtype == column.dtype
    assert set(np.load(tmp_path / "a.npz").files) == {"header", *COLUMNS}


def test_texts(tmp_path: Path) -> None:
    for texts in ((), ("",), ("a", "", "ä"), ("x",)):
        assert text_from_column(text_column(texts)) == texts
    with pytest.raises(InputError, match="must not contain a line break"):
        text_column(["a\nb"])


def test_writing_is_all_or_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "f"
    atomic_write_bytes(path, b"old")
    monkeypatch.setattr(Path, "replace", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        atomic_write_bytes(path, b"new")
    assert path.read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["f"]


@pytest.mark.parametrize(
    ("kind", "version", "message"),
    [
        ("other", 1, "holds a other, but a thing is needed"),
        ("thing", 2, "thing version 2 is newer than the 1 this Pagetide reads; update Pagetide"),
    ],
)
def test_wrong_kind_or_version(tmp_path: Path, kind, version, message) -> None:
    save(tmp_path / "f.npz", kind=kind, version=version)
    with pytest.raises(InputError, match=message) as caught:
        load(tmp_path / "f.npz")
    assert str(tmp_path / "f.npz") in str(caught.value)


def test_missing_column(tmp_path: Path) -> None:
    save(tmp_path / "f.npz")
    with pytest.raises(InputError, match=r"damaged thing file: column 'd' is missing"):
        load_columns(tmp_path / "f.npz", kind="thing", version=1, required=[*COLUMNS, "d"])


def test_not_such_a_file(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("hello")
    np.save(tmp_path / "one.npy", np.arange(3))
    np.savez(tmp_path / "plain.npz", a=np.arange(3))
    np.savez(tmp_path / "pickle.npz", header=np.array([{"pagetide": "thing"}], dtype=object))
    (tmp_path / "empty").write_bytes(b"")
    for name in ("text", "one.npy", "plain.npz", "pickle.npz", "empty"):
        with pytest.raises(InputError, match="not a Pagetide thing file, or damaged") as caught:
            load(tmp_path / name)
        assert name in str(caught.value)
    with pytest.raises(InputError, match="no such file"):
        load(tmp_path / "nothing")
    with pytest.raises(InputError, match="is a folder"):
        load(tmp_path)


def test_truncated_anywhere(tmp_path: Path) -> None:
    whole = save(tmp_path / "f.npz")
    for length in range(0, len(whole), 7):
        (tmp_path / "f.npz").write_bytes(whole[:length])
        with pytest.raises(InputError):
            load(tmp_path / "f.npz")


@settings(
    deadline=None,
    max_examples=150,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    derandomize=True,
)
@given(st.data())
def test_flipped_bytes_never_raise_anything_else(tmp_path: Path, data: st.DataObject) -> None:
    whole = bytearray(save(tmp_path / "f.npz"))
    for _ in range(data.draw(st.integers(1, 3))):
        whole[data.draw(st.integers(0, len(whole) - 1))] ^= data.draw(st.integers(1, 255))
    (tmp_path / "f.npz").write_bytes(bytes(whole))
    try:
        load(tmp_path / "f.npz")
    except InputError as error:
        assert "f.npz" in str(error)


def test_every_byte_of_the_archive_flipped(tmp_path: Path) -> None:
    """Random flips seldom hit the few bytes of the archive that name the compression or say that it is encrypted."""
    path = tmp_path / "f.npz"
    save_columns(path, kind="thing", version=1, header={}, columns={"a": np.arange(3)})
    whole = path.read_bytes()
    for place in range(len(whole)):
        # 1 says that it is encrypted; 4 and 6 turn the method "deflate" (8) into bzip2 (12) and LZMA (14).
        for flip in (1, 4, 6):
            damaged = bytearray(whole)
            damaged[place] ^= flip
            path.write_bytes(damaged)
            try:
                load_columns(path, kind="thing", version=1, required=["a"])
            except InputError as error:
                assert str(path) in str(error)


def raw_archive(path: Path, members: dict[str, bytes]) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)


def raw_column(content: bytes) -> bytes:
    raw = io.BytesIO()
    np.lib.format.write_array(raw, np.frombuffer(content, dtype=np.uint8))
    return raw.getvalue()


GOOD_HEADER = raw_column(b'{"pagetide": "thing", "version": 1}')


@pytest.mark.parametrize(
    "description",
    [
        "{'descr': '<i8', 'fortran_order': False, 'shape': (1000000000000000,)}",
        "{'descr': '<i8', 'fortran_order': False, 'shape': (10000000000000000000000000000000,)}",
        "{'descr': '<i8', 'fortran_order': False, 'shape': (-1,)}",
        "{'descr': '|O', 'fortran_order': False, 'shape': (1,)}",
        "{'descr': '<U1', 'fortran_order': False, 'shape': (0,)}",
        "{'descr",
        "(" * 900,
        "",
    ],
)
def test_a_column_that_lies_about_itself(tmp_path: Path, description: str) -> None:
    text = description.encode() + b"\n"
    column = b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text
    raw_archive(tmp_path / "f.npz", {"header.npy": GOOD_HEADER, "a.npy": column})
    with pytest.raises(
        InputError, match=r"f\.npz: not a Pagetide thing file, or damaged"
    ) as caught:
        load_columns(tmp_path / "f.npz", kind="thing", version=1, required=["a"])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "header",
    [
        b'{"pagetide": "thing", "version": Infinity}',
        b'{"pagetide": "thing", "version": "x"}',
        b'{"pagetide": "thing"}',
        b'{"version": 1}',
        b"[1]",
        b"[" * 5000,
        b"\xff",
    ],
)
def test_a_header_of_another_shape(tmp_path: Path, header: bytes) -> None:
    raw_archive(tmp_path / "f.npz", {"header.npy": raw_column(header)})
    with pytest.raises(InputError, match=r"f\.npz: not a Pagetide thing file, or damaged"):
        load_columns(tmp_path / "f.npz", kind="thing", version=1, required=[])


def test_a_member_that_is_no_column(tmp_path: Path) -> None:
    raw_archive(tmp_path / "f.npz", {"header.npy": GOOD_HEADER, "a": b"raw"})
    with pytest.raises(InputError, match="a column holds no numbers"):
        load_columns(tmp_path / "f.npz", kind="thing", version=1, required=["a"])


@settings(
    deadline=None,
    max_examples=150,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    derandomize=True,
)
@given(st.binary(max_size=60))
def test_nonsense_header(tmp_path: Path, header: bytes) -> None:
    with zipfile.ZipFile(tmp_path / "f.npz", "w") as archive:
        raw = io.BytesIO()
        np.lib.format.write_array(raw, np.frombuffer(header, dtype=np.uint8))
        archive.writestr("header.npy", raw.getvalue())
    with pytest.raises(InputError):
        load(tmp_path / "f.npz")


def test_did_you_mean() -> None:
    assert did_you_mean("memroy", ["memory", "clock"]) == "did you mean 'memory'?"
    assert did_you_mean("x", ["memory", "clock"]) == "known are 'memory', 'clock'"

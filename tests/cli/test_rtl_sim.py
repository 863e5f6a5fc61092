"""``pagetide rtl sim``: a window of kernels through the RTL, reported and kept; waves on demand."""

import json
from pathlib import Path

import pytest

WINDOW = ("resnet50", "--batch", "4", "--kernels", "100:120")


@pytest.mark.xdist_group("small-bench")
def test_reports_and_keeps_the_result(cli, tmp_path: Path) -> None:
    outcome = cli("rtl", "sim", *WINDOW, "--latency", "20", "--jitter", "10", "-o", "out/rtl.json")
    assert outcome.code == 0, outcome.err
    result = json.loads((tmp_path / "out" / "rtl.json").read_text())
    assert f"{result['translations']:,}" in outcome.out
    assert "0 mismatches, 0 lost, 0 duplicate" in outcome.out
    assert "20 to 30 cycles" in outcome.out
    assert result["mismatches"] == result["lost"] == result["duplicates"] == 0
    assert result["mmu"]["l1_entries"] == 8
    assert sum(result["statuses"].values()) == result["translations"] > 50


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--kernels", "5"), "--kernels: '5' is not FIRST:LAST, for instance 100:120"),
        (("--kernels", "5:2"), "--kernels: '5:2' is not a window of the kernels 0 to"),
        (("--page", "3 MiB"), "page size is 3145728 bytes; use a power of two"),
        (
            ("--page", "8 KiB"),
            "the page-table format has no page of 8192 bytes; there are 4096, 65536, 2097152",
        ),
        (("--page", "2 parsec"), "--page: '2 parsec' is not a size"),
        (
            ("--touch", "4 MiB"),
            "touch granularity is 4194304 bytes; use a power of two from 128 to the page size",
        ),
        (("--latency", "0"), "memory latency must be at least 1 cycle, not 0"),
        (("--waves", "x.foo"), "--waves: x.foo must end in .vcd or .fst"),
        (("--policy", "g11"), "unknown policy 'g11'"),
    ],
)
@pytest.mark.xdist_group("small-bench")
def test_bad_input(cli, tmp_path: Path, arguments, message) -> None:
    outcome = cli("rtl", "sim", "resnet50", "--batch", "4", *arguments)
    assert outcome.code == 2
    assert message in outcome.err
    assert outcome.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize(("name", "magic"), [("w.vcd", b"$"), ("w.fst", b"\x00")])
def test_waves(cli, tmp_path: Path, name, magic) -> None:
    outcome = cli("rtl", "sim", *WINDOW, "--mmu", "tiny", "--waves", name)
    assert outcome.code == 0, outcome.err
    content = (tmp_path / name).read_bytes()
    assert content.startswith(magic)
    assert len(content) > 10_000

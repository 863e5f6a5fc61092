# amaranth: UnusedElaboratable=no
"""Constrained-random and directed cocotb tests of the blocks; the benches are in `cocotb_blocks.py`."""

import json
from pathlib import Path

import pytest

from pagetide.hw.config import PRESETS
from pagetide.hw.pagetable.nvidia_v2 import Status
from pagetide.hw.tlb.l1 import L1Tlb
from pagetide.hw.top import Mmu
from pagetide.hw.walker.walker import Walker
from pagetide.sim.build import build_component
from pagetide.sim.runner import run

BENCH = Path(__file__).with_name("cocotb_blocks.py")
WALKER = {
    "contexts": 5,
    "tag_bits": 4,
    "pa_bits": 40,
    "memory_address_bits": 44,
    "memory_data_bits": 256,
    "pipelined": True,
}
L1 = {
    "entries": 4,
    "latency": 2,
    "miss_slots": 3,
    "miss_merges": 3,
    "id_bits": 5,
    "asid_bits": 1,
    "pa_bits": 47,
}
EVERY_STATUS = {s.name for s in Status} - {"UNBOUND_INST_BLOCK", "VA_LIMIT"}


def simulate(component, parameters, testcase, folder, *, seed, requests):
    note = folder / "note.json"
    run(
        build_component(component),
        BENCH,
        testcase=testcase,
        seed=seed,
        env={
            "PAGETIDE_PARAMETERS": json.dumps(parameters),
            "PAGETIDE_REQUESTS": str(requests),
            "PAGETIDE_NOTE": str(note),
        },
        folder=folder,
    )
    return json.loads(note.read_text()) if note.exists() else {}


@pytest.mark.parametrize("preset", ["tiny", "small"])
def test_mmu_directed(preset, tmp_path):
    config = PRESETS[preset]
    simulate(Mmu(config), config.to_dict(), "mmu_directed", tmp_path, seed=1, requests=0)


@pytest.mark.parametrize("preset", ["tiny", "small"])
def test_mmu_random(preset, tmp_path):
    """F1 to F10, O1 to O6, L1, L2, L7 of the bug list, at random."""
    config = PRESETS[preset]
    covered = simulate(
        Mmu(config),
        config.to_dict(),
        "mmu_random",
        tmp_path,
        seed=2,
        requests=1500 if preset == "small" else 800,
    )
    assert {name for name, count in covered["statuses"].items() if count} >= {
        "OK",
        "FLASH",
        "HOST_KEPT",
        "MIGRATING",
        "NOT_RESIDENT",
        "SPARSE",
        "BUS_ERROR",
        "RO",
        "PRIV",
        "ATOMIC",
    }
    for what in ("invalidations", "injected", "hits", "merges", "dropped_fills"):
        assert covered[what] > 10, what


def test_l1_random(tmp_path):
    covered = simulate(L1Tlb(**L1), L1, "l1_random", tmp_path, seed=3, requests=3000)
    assert covered["invalidations"] > 30
    assert covered["hits"] > 200
    assert {"OK", "FLASH", "RO", "PRIV", "ATOMIC"} <= set(covered["statuses"])


def test_walker_random(tmp_path):
    covered = simulate(Walker(**WALKER), WALKER, "walker_random", tmp_path, seed=4, requests=2000)
    assert set(covered["levels"]) == {"1", "2", "3", "4", "5", "6"}
    assert set(covered["statuses"]) >= EVERY_STATUS - {"PRIV", "RO", "ATOMIC"}
    assert covered["injected"] > 10


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10, 20))
@pytest.mark.parametrize("preset", ["tiny", "small"])
def test_mmu_random_long(preset, seed, tmp_path):
    config = PRESETS[preset]
    simulate(Mmu(config), config.to_dict(), "mmu_random", tmp_path, seed=seed, requests=10_000)

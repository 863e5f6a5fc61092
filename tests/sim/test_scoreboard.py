"""The scoreboard tells every kind of wrong answer."""

import numpy as np
import pytest

from pagetide.hw.pagetable.nvidia_v2 import Status
from pagetide.sim.scoreboard import RECORD, judge


@pytest.fixture
def run(mixed_table, mixed_stream):
    """A perfect run: records as the golden walk has them."""
    golden = mixed_table.translate_many(mixed_stream.va, mixed_stream.access)
    records = np.zeros(len(mixed_stream), dtype=RECORD)
    for name in ("pa", "flash_page", "status", "page_size", "aperture"):
        records[name] = getattr(golden, name)
    records["answers"] = 1
    return records, mixed_stream.va, mixed_stream.access, mixed_table.image()


def first(records, status) -> int:
    return int(np.flatnonzero(records["status"] == status)[0])


def test_a_right_run_is_clean(run) -> None:
    verdict = judge(*run)
    assert verdict.clean
    assert verdict.first == ""


@pytest.mark.parametrize(
    ("status", "field"),
    [
        (Status.OK, "pa"),
        (Status.OK, "aperture"),
        (Status.OK, "page_size"),
        (Status.OK, "status"),
        (Status.FLASH, "flash_page"),
        (Status.MIGRATING, "flash_page"),
        (Status.NOT_RESIDENT, "status"),
    ],
)
def test_one_wrong_field_is_one_mismatch(run, status, field) -> None:
    n = first(run[0], status)
    run[0][field][n] ^= 1
    verdict = judge(*run)
    assert (verdict.mismatches, verdict.lost, verdict.duplicates) == (1, 0, 0)
    assert not verdict.clean
    assert verdict.first.startswith(f"request {n}: va {int(run[1][n]):#x}")


def test_lost_and_duplicate_answers(run) -> None:
    run[0]["answers"][5] = 0
    run[0]["answers"][9] = 3
    verdict = judge(*run)
    assert (verdict.mismatches, verdict.lost, verdict.duplicates) == (0, 1, 2)
    assert verdict.first.startswith("request 5: ")


def test_bus_errors_are_right_only_where_they_were_injected(run) -> None:
    run[0]["status"][3] = Status.BUS_ERROR
    assert judge(*run).mismatches == 1
    assert judge(*run, bus_errors=True).clean

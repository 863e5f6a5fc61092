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
        (Status.NOT_RESIDENT, "pa"),
        (Status.NOT_RESIDENT, "aperture"),
        (Status.NOT_RESIDENT, "page_size"),
        (Status.FLASH, "aperture"),
    ],
)
def test_one_wrong_field_is_one_mismatch(run, status, field) -> None:
    n = first(run[0], status)
    run[0][field][n] ^= 1
    verdict = judge(*run)
    assert (verdict.mismatches, verdict.lost, verdict.duplicates) == (1, 0, 0)
    assert not verdict.clean
    assert verdict.first.startswith(f"request {n} (va {int(run[1][n]):#x}")


def test_lost_and_duplicate_answers(run) -> None:
    run[0]["answers"][5] = 0
    run[0]["answers"][9] = 3
    verdict = judge(*run)
    assert (verdict.mismatches, verdict.lost, verdict.duplicates) == (0, 1, 2)
    assert verdict.first.startswith("request 5 (")
    assert "never taken, no response; expected status" in verdict.first


def test_the_report_names_the_earliest_offender_with_all_fields(run, mixed_stream) -> None:
    records = run[0]
    records["request_cycle"] = 1000 - np.arange(len(records)) // 10
    records["response_cycle"] = 2000
    for n in (15, 4000):
        records["status"][n] = 0x3F
    verdict = judge(*run, port=mixed_stream.requester, kernel=mixed_stream.kernel)
    golden = run[3].translate_many(run[1][4000:4001], run[2][4000:4001])[0]
    assert verdict.mismatches == 2
    assert verdict.first == (
        f"request 4000 (va {int(run[1][4000]):#x}, access {int(run[2][4000])}, "
        f"port {int(mixed_stream.requester[4000])}, kernel {int(mixed_stream.kernel[4000])}): "
        "taken in cycle 600, 1 response, the last in cycle 2000; got status 0x3f (no such status), "
        f"pa {int(records['pa'][4000]):#x}, aperture {int(records['aperture'][4000])}, "
        f"page size {int(records['page_size'][4000])}, flash page {int(records['flash_page'][4000]):#x}, hit 0; "
        f"expected status {golden.status.name}, pa {golden.pa:#x}, aperture {int(golden.aperture)}, "
        f"page size {int(golden.page_size)}, flash page {golden.flash_page:#x}"
    )


def test_bus_errors_are_right_only_where_they_were_injected(run) -> None:
    run[0]["status"][3] = Status.BUS_ERROR
    assert judge(*run).mismatches == 1
    assert judge(*run, bus_errors=True).clean

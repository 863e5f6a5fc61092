"""Results on disk: what is written reads back, the same result gives the same bytes, damage is told in one line."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from pagetide.model import engine
from pagetide.model.errors import InputError
from pagetide.model.planners import get_planner
from pagetide.model.result import Result
from pagetide.model.result_files import find_results, result_path
from pagetide.model.system import load_system
from pagetide.model.workload import zoo

TABLES = ("kernels", "transfers", "tensors")


@pytest.fixture(scope="module")
def result() -> Result:
    step = zoo.load("bert-base", batch=32)
    machine = load_system(overrides=["gpu.memory=6 GiB"])
    return engine.run(step, get_planner("uvm").plan(step, machine), machine)


def same(a: object, b: object) -> bool:
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return a.dtype == b.dtype and np.array_equal(a, b)
    if dataclasses.is_dataclass(a):
        return type(a) is type(b) and all(
            same(getattr(a, field.name), getattr(b, field.name)) for field in dataclasses.fields(a)
        )
    return a == b


def test_a_result_reads_back(result: Result, tmp_path: Path) -> None:
    file = result.save(tmp_path / "out")
    assert file == tmp_path / "out" / "uvm.json"
    for path in (file, tmp_path / "out" / "uvm"):
        again = Result.load(path)
        for field in dataclasses.fields(result):
            assert same(getattr(again, field.name), getattr(result, field.name)), field.name
        assert again.summary() == result.summary()


def test_the_same_result_gives_the_same_bytes(result: Result, tmp_path: Path) -> None:
    first = result.save(tmp_path / "a" / "x.json")
    second = Result.load(first).save(tmp_path / "b" / "x.json")
    files = sorted(path.name for path in first.parent.iterdir())
    assert files == ["x.json", *sorted(f"x.{name}.parquet" for name in TABLES)]
    for name in files:
        assert (first.parent / name).read_bytes() == (second.parent / name).read_bytes()


def test_tables_open_by_themselves(result: Result, tmp_path: Path) -> None:
    result.save(tmp_path)
    kernels = pq.read_table(tmp_path / "uvm.kernels.parquet")
    assert kernels.num_rows == len(result.kernels)
    assert kernels.column("name").to_pylist() == list(result.kernels.names)
    assert set(kernels.column("phase").to_pylist()) == {"forward", "backward", "optimizer"}
    waited = kernels.column("start_ps").to_numpy() - kernels.column("ready_ps").to_numpy()
    assert waited.sum() == result.stall_ps
    parts = [name for name in kernels.column_names if name.startswith("stall_")]
    assert sum(kernels.column(name).to_numpy() for name in parts).tolist() == waited.tolist()
    for tensor, name in zip(
        kernels.column("blame_tensor").to_pylist(),
        kernels.column("blame_tensor_name").to_pylist(),
        strict=True,
    ):
        assert name == (None if tensor is None else result.tensors.names[tensor])
    transfers = pq.read_table(tmp_path / "uvm.transfers.parquet")
    moved = transfers.group_by("channel").aggregate([("bytes", "sum")]).to_pylist()
    assert moved
    for row in moved:
        assert row["bytes_sum"] == result.traffic(row["channel"])
    names = transfers.column("tensor_name").to_pylist()
    assert names == [result.tensors.names[t] for t in transfers.column("tensor").to_pylist()]


def test_an_empty_transfer_log_reads_back(result: Result, tmp_path: Path) -> None:
    nothing = {
        f.name: getattr(result.transfers, f.name)[:0]
        for f in dataclasses.fields(result.transfers)
        if f.name != "lost"
    }
    none = dataclasses.replace(
        result, transfers=dataclasses.replace(result.transfers, lost=7, **nothing)
    )
    assert same(Result.load(none.save(tmp_path)).transfers, none.transfers)


def test_a_policy_name_does_not_leave_the_folder(result: Result, tmp_path: Path) -> None:
    odd = dataclasses.replace(result, policy="../../a b/c")
    assert result_path(odd, tmp_path).parent == tmp_path
    assert Result.load(odd.save(tmp_path)).policy == odd.policy


def test_missing_files_are_told(result: Result, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none\.json: no such file"):
        Result.load(tmp_path / "none.json")
    file = result.save(tmp_path)
    for name in TABLES:
        table = tmp_path / f"uvm.{name}.parquet"
        kept = table.read_bytes()
        table.unlink()
        with pytest.raises(InputError, match=rf"uvm\.{name}\.parquet: no such file"):
            Result.load(file)
        table.mkdir()
        with pytest.raises(InputError, match="is a folder"):
            Result.load(file)
        table.rmdir()
        table.write_bytes(kept)


def test_tables_of_another_run_are_refused(result: Result, tmp_path: Path) -> None:
    file = result.save(tmp_path)
    other = dataclasses.replace(result, fault_blocks=result.fault_blocks + 1)
    other.save(tmp_path / "other")
    table = "uvm.kernels.parquet"
    (tmp_path / table).write_bytes((tmp_path / "other" / table).read_bytes())
    with pytest.raises(InputError, match="of another run"):
        Result.load(file)


def test_every_cut_and_every_wrong_value_is_an_input_error(result: Result, tmp_path: Path) -> None:
    file = result.save(tmp_path)
    data = file.read_bytes()
    for cut in range(0, len(data) - 2, 97):
        file.write_bytes(data[:cut])
        with pytest.raises(InputError):
            Result.load(file)
    whole = json.loads(data)
    derived = {
        "iteration_s",
        "compute_s",
        "overlap_s",
        "stall_s",
        "stall_by_cause_s",
        "fraction_of_ideal",
        "fault_blocks",
    }
    for key in whole.keys() - derived - {"ssd_written_bytes"}:
        for wrong in (None, True, "x", 1.5, 7, [], {}):
            if isinstance(wrong, type(whole[key])) and key not in ("pagetide", "traffic_bytes"):
                continue
            file.write_text(json.dumps({**whole, key: wrong}))
            with pytest.raises(InputError) as told:
                Result.load(file)
            assert "\n" not in str(told.value)
        without = {name: value for name, value in whole.items() if name != key}
        file.write_text(json.dumps(without))
        with pytest.raises(InputError):
            Result.load(file)
    file.write_text(json.dumps({**whole, "version": 99}))
    with pytest.raises(InputError, match="newer"):
        Result.load(file)


def test_results_are_found_in_folders(result: Result, tmp_path: Path) -> None:
    second = result.save(tmp_path / "b.json")
    first = result.save(tmp_path / "a.json")
    (tmp_path / "a.timeline.json").write_text("{}")
    assert find_results([tmp_path, second]) == [first, second, second]
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="no result in this folder"):
        find_results([tmp_path / "empty"])

"""The `Workload` type: validation, files, and what it derives."""

import dataclasses
import warnings
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagetide.model.columnar import load_columns, save_columns
from pagetide.model.errors import InputError
from pagetide.model.workload import (
    Csr,
    Phase,
    TensorKind,
    UnusedTensorWarning,
    Workload,
    WorkloadBuilder,
)


def toy() -> WorkloadBuilder:
    builder = WorkloadBuilder("toy", {"batch": 4})
    w = builder.tensor("w", 4096, TensorKind.WEIGHT, is_global=True)
    x = builder.tensor("x", 100, TensorKind.INPUT)
    y = builder.tensor("y", 200, TensorKind.ACTIVATION)
    builder.kernel("mm", 1000.5, inputs=[w, x], outputs=[y], flops=1e6)
    builder.kernel("relu_", 10.0, inputs=[y], outputs=[y], phase=Phase.BACKWARD)
    return builder


def test_what_it_derives() -> None:
    step = toy().build()
    assert (len(step.tensors), len(step.kernels)) == (3, 2)
    assert step.total_bytes == 4396
    assert step.ideal_ns == 1010.5
    assert step.operands[0].tolist() == [0, 1, 2]
    assert step.operands[1].tolist() == [2]
    assert step.kernels.phase.tolist() == [Phase.FORWARD, Phase.BACKWARD]
    assert step.metadata["batch"] == 4


def test_ideal_cycles_cut_each_kernel_down() -> None:
    builder = WorkloadBuilder("c")
    t = builder.tensor("t", 1, TensorKind.INPUT)
    for _ in range(3):
        builder.kernel("k", 1.5, inputs=[t])
    assert builder.build().ideal_cycles(1e9) == 3
    assert builder.build().ideal_cycles(2e9) == 9


def test_scaled() -> None:
    fast = toy().build().scaled(2.0)
    assert fast.ideal_ns == 505.25
    assert fast.metadata == {"batch": 4, "kernel_speedup": 2.0}
    for bad in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(InputError, match="kernel speed-up must be a positive number"):
            toy().build().scaled(bad)


@settings(deadline=None)
@given(st.lists(st.tuples(*(st.lists(st.integers(0, 5), max_size=5),) * 2), min_size=1, max_size=6))
def test_operands_are_the_sorted_union(kernels) -> None:
    builder = WorkloadBuilder("r")
    for n in range(6):
        builder.tensor(f"t{n}", 1, TensorKind.ACTIVATION)
    for inputs, outputs in kernels:
        builder.kernel("k", 1.0, inputs=inputs, outputs=outputs)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnusedTensorWarning)
        step = builder.build()
    for k, (inputs, outputs) in enumerate(kernels):
        assert step.operands[k].tolist() == sorted({*inputs, *outputs})
        assert step.inputs[k].tolist() == inputs


def bad_builder(**changes: object) -> WorkloadBuilder:
    builder = WorkloadBuilder("bad")
    builder.tensor("t", int(changes.get("size", 1)), TensorKind.INPUT)
    builder.kernel(
        "k",
        float(changes.get("duration", 1.0)),
        inputs=changes.get("inputs", [0]),
        outputs=changes.get("outputs", []),
        flops=float(changes.get("flops", 0.0)),
    )
    return builder


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"size": 0}, r"workload 'bad': tensor 0 \('t'\) has 0 bytes; a size must be positive"),
        ({"size": -5}, r"tensor 0 \('t'\) has -5 bytes"),
        (
            {"duration": -1.0},
            r"kernel 0 \('k'\) has duration_ns -1.0; it must be finite and not negative",
        ),
        ({"duration": float("nan")}, "has duration_ns nan"),
        ({"duration": float("inf")}, "has duration_ns inf"),
        ({"flops": float("inf")}, "has flops inf"),
        (
            {"inputs": [0, 1]},
            r"kernel 0 \('k'\) names input tensor 1, but there are only tensors 0 to 0",
        ),
        ({"outputs": [-1]}, "names output tensor -1"),
        ({"outputs": [1 << 32]}, "tensor ids must fit 32 bits"),
        ({"size": 1 << 61}, r"tensors have 2.31e\+18 bytes together; 2\^60 are allowed"),
        ({"size": 1 << 70}, "workload 'bad': a number is out of range"),
        ({"duration": 1e300}, r"kernels take 1e\+300 ns together; 4e\+15 ns are allowed"),
    ],
)
def test_validation(changes, message) -> None:
    with pytest.raises(InputError, match=message):
        bad_builder(**changes).build()


def test_times_whose_sum_is_no_float() -> None:
    builder = WorkloadBuilder("long")
    for _ in range(3):
        builder.kernel("k", 1.7e308)
    with pytest.raises(InputError, match=r"kernels take 1.7e\+308 ns together"):
        builder.build()


def test_no_kernels() -> None:
    with pytest.raises(InputError, match="workload 'none': has no kernels"):
        WorkloadBuilder("none").build()


def test_unused_tensor_is_a_named_warning() -> None:
    builder = toy()
    builder.tensor("spare", 1, TensorKind.INPUT)
    with pytest.warns(
        UnusedTensorWarning,
        match=r"1 tensors are operands of no kernel, the first is 3 \('spare'\)",
    ):
        builder.build()


def test_columns_must_fit_together() -> None:
    step = toy().build()
    with pytest.raises(
        InputError, match=r"column inputs.indptr has shape \(2,\), but \(3,\) is needed"
    ):
        Workload("w", step.tensors, step.kernels, Csr.from_lists([[0]]), step.outputs)
    broken = Csr(indptr=np.array([0, 5, 3]), ids=np.zeros(3, dtype=np.int32))
    with pytest.raises(InputError, match="the input lists are damaged"):
        Workload("w", step.tensors, step.kernels, broken, step.outputs)


def test_save_and_load(tmp_path: Path) -> None:
    step = toy().build()
    step.save(tmp_path / "a.npz")
    again = Workload.load(tmp_path / "a.npz")
    again.save(tmp_path / "b.npz")
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()
    assert again.name == "toy"
    assert again.tensors.names == ("w", "x", "y")
    assert again.kernels.duration_ns.tolist() == [1000.5, 10.0]
    assert again.tensors.is_global.tolist() == [True, False, False]


def test_an_inconsistent_file_names_itself(tmp_path: Path) -> None:
    toy().build().save(tmp_path / "a.npz")
    header, columns = load_columns(tmp_path / "a.npz", kind="workload", version=1, required=[])
    header.pop("version")
    for name, value, message in (
        ("input_ids", np.array([0, 9, 2], dtype=np.int32), "names input tensor 9"),
        ("tensor_size_bytes", np.array([1, 0, 1]), "has 0 bytes"),
        ("tensor_size_bytes", np.array([1.5, 1.0, 1.0]), "damaged workload file"),
        ("kernel_phase", np.array([7, 0], dtype=np.uint8), "kernel phase 7 is unknown; use 0 to 2"),
        ("input_indptr", np.array([], dtype=np.int64), "column inputs.indptr has shape"),
        ("input_ids", np.zeros((3, 2), dtype=np.int32), "the input lists are damaged"),
        ("input_ids", np.int32(1), "the input lists are damaged"),
        ("tensor_names", np.array([255], dtype=np.uint8), "damaged workload file"),
        ("tensor_names", np.frombuffer(b"a\nb\n", dtype=np.uint8), "has shape"),
    ):
        save_columns(
            tmp_path / "b.npz",
            kind="workload",
            version=1,
            header=header,
            columns={**columns, name: value},
        )
        with pytest.raises(InputError, match=message) as caught:
            Workload.load(tmp_path / "b.npz")
        assert "b.npz" in str(caught.value)


def test_scaled_twice_says_the_product() -> None:
    fast = toy().build().scaled(2.0).scaled(3.0)
    assert fast.ideal_ns == pytest.approx(1010.5 / 6)
    assert fast.metadata["kernel_speedup"] == 6.0


@pytest.mark.parametrize("ids", [[0.5], ["0"], [True], [None]])
def test_ids_are_whole_numbers(ids) -> None:
    with pytest.raises(InputError, match="tensor ids must be whole numbers, but they are"):
        Csr.from_lists([[], ids])


@settings(deadline=None, max_examples=50)
@given(data=st.data())
def test_any_workload_reads_back(tmp_path_factory, data: st.DataObject) -> None:
    builder = WorkloadBuilder(data.draw(st.sampled_from(["w", "ä b"])), {"n": [1, None, "x"]})
    names = st.text(st.characters(codec="utf-8", exclude_characters="\n"), max_size=4)
    count = data.draw(st.integers(1, 4))
    for _ in range(count):
        builder.tensor(
            data.draw(names),
            data.draw(st.integers(1, 1 << 58)),
            data.draw(st.sampled_from(TensorKind)),
            is_global=data.draw(st.booleans()),
        )
    some = st.lists(st.integers(0, count - 1), max_size=3)
    for _ in range(data.draw(st.integers(1, 4))):
        builder.kernel(
            data.draw(names),
            data.draw(st.floats(0, 1e15)),
            inputs=data.draw(some),
            outputs=data.draw(some),
            flops=data.draw(st.floats(0, 1e300)),
            phase=data.draw(st.sampled_from(Phase)),
        )
    path = tmp_path_factory.mktemp("w") / "a.npz"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnusedTensorWarning)
        step = builder.build()
        step.save(path)
        again = Workload.load(path)
    assert (again.name, again.metadata) == (step.name, step.metadata)
    for part in ("tensors", "kernels", "inputs", "outputs"):
        one, other = getattr(step, part), getattr(again, part)
        for field in dataclasses.fields(one):
            a, b = getattr(one, field.name), getattr(other, field.name)
            assert np.array_equal(a, b), (part, field.name)
            assert getattr(a, "dtype", None) == getattr(b, "dtype", None)


@settings(deadline=None, max_examples=100, derandomize=True)
@given(place=st.floats(0, 1, exclude_max=True), flip=st.integers(1, 255))
def test_a_damaged_file_names_itself(tmp_path_factory, place: float, flip: int) -> None:
    path = tmp_path_factory.mktemp("w") / "a.npz"
    toy().build().save(path)
    whole = bytearray(path.read_bytes())
    whole[int(place * len(whole))] ^= flip
    path.write_bytes(whole)
    try:
        Workload.load(path)
    except InputError as error:
        assert str(path) in str(error)

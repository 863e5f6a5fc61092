"""Captures without PyTorch: polynomials, files, optimizer rules; and that recording asks for PyTorch in plain words."""

import sys
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from pagetide.model.errors import InputError
from pagetide.model.workload import Csr, Phase, TensorKind, zoo
from pagetide.model.workload.capture import (
    Capture,
    capture_function,
    capture_step,
    evaluate,
    optimizer_names,
    optimizer_rule,
)
from pagetide.model.workload.capture.fit import _fit, _inverse
from pagetide.model.workload.zoo.build import capture_target


@pytest.fixture
def linear() -> Capture:
    """``y = x w``: 4 inputs, 3 outputs, forward and weight gradient."""
    return Capture(
        name="linear",
        basis=((0, 0), (1, 0)),
        tensor_names=("w", "x", "", "", "w.grad"),
        tensor_bytes=np.array([[48, 0], [0, 16], [0, 12], [0, 12], [48, 0]]),
        tensor_kind=np.array(
            [
                TensorKind.WEIGHT,
                TensorKind.INPUT,
                TensorKind.ACTIVATION,
                TensorKind.ACTIVATION,
                TensorKind.GRADIENT,
            ],
            dtype=np.uint8,
        ),
        tensor_is_global=np.array([True, False, False, False, False]),
        param_tensor=np.array([0], dtype=np.int32),
        param_gradient=np.array([4], dtype=np.int32),
        param_bytes=np.array([48]),
        param_count=12,
        kernel_ops=("aten.mm.default", "aten.ones_like.default", "aten.mm.default"),
        kernel_modules=("layer", "", "layer"),
        kernel_phase=np.array([Phase.FORWARD, Phase.BACKWARD, Phase.BACKWARD], dtype=np.uint8),
        kernel_half=np.zeros(3, dtype=np.bool_),
        kernel_flops=np.array([[0, 24], [0, 0], [0, 24]]),
        kernel_traffic=np.array([[48, 28], [0, 24], [48, 28]]),
        inputs=Csr.from_lists([[1, 0], [2], [1, 3]]),
        outputs=Csr.from_lists([[2], [3], [4]]),
        metadata={"precision": "fp32"},
    )


def test_evaluate_is_exact_beyond_doubles() -> None:
    coefficients = np.array([[1, 2**40 + 1, 0, 3]])
    basis = [(0, 0), (1, 0), (0, 1), (1, 2)]
    value = evaluate(coefficients, basis, batch=4099, seq=777)
    assert value.tolist() == [1 + (2**40 + 1) * 4099 + 3 * 4099 * 777**2]


def test_evaluate_refuses_to_overflow() -> None:
    with pytest.raises(InputError, match="do not fit 63 bits"):
        evaluate(np.array([[0, 2**40]]), [(0, 0), (1, 0)], batch=2**23, seq=0)


def test_workload_of_a_capture(linear: Capture) -> None:
    step = linear.workload(batch=10)
    assert step.name == "linear-b10-fp32-none"
    assert step.tensors.size_bytes.tolist() == [48, 160, 120, 120, 48]
    assert step.kernels.flops.tolist() == [240.0, 0.0, 240.0]
    assert step.kernels.names == ("layer:mm", "ones_like", "layer:mm")
    assert step.tensors.names == ("w", "x", "layer:mm.k0.t2", "ones_like.k1.t3", "w.grad")


def test_momentum_step_appended(linear: Capture) -> None:
    """mul_ of the momentum, add_ of the gradient to it, add_ of it to the weight."""
    step = linear.workload(batch=10, optimizer="sgd")
    assert step.tensors.names[5:] == ("w.momentum_buffer",)
    assert step.tensors.kind[5] == TensorKind.OPTIMIZER
    assert step.tensors.is_global[5]
    assert step.kernels.names[3:] == ("w:mul_", "w:add_", "w:add_")
    assert [step.inputs[k].tolist() for k in (3, 4, 5)] == [[5], [5, 4], [0, 5]]
    assert [step.outputs[k].tolist() for k in (3, 4, 5)] == [[5], [5], [0]]
    assert step.metadata["optimizer"] == "sgd"


def test_adamw_step_has_temporaries(linear: Capture) -> None:
    step = linear.workload(batch=1, optimizer="adamw")
    workspace = step.tensors.kind == TensorKind.WORKSPACE
    assert np.count_nonzero(workspace) == optimizer_rule("adamw").temporaries == 2
    assert not step.tensors.is_global[workspace].any()
    assert np.all(step.tensors.size_bytes[5:] == 48)


@pytest.mark.parametrize("name", optimizer_names())
def test_optimizer_rules_make_sense(name: str) -> None:
    """Every state is read and written, the parameter is written, and no temporary is read before it is written."""
    rule = optimizer_rule(name)
    read = {r for kernel in rule.kernels for r in kernel.reads}
    written = {r for kernel in rule.kernels for r in kernel.writes}
    states = set(range(2, 2 + len(rule.states)))
    temporaries = set(range(2 + len(rule.states), 2 + len(rule.states) + rule.temporaries))
    assert states | {0} <= read & written
    assert 1 in read - written
    assert read | written == {0, 1} | states | temporaries
    known = {0, 1} | states
    for kernel in rule.kernels:
        assert set(kernel.reads) <= known
        known |= set(kernel.writes)


def test_round_trip(linear: Capture, tmp_path: Path) -> None:
    path = tmp_path / "linear.npz"
    linear.save(path)
    again = Capture.load(path)
    for optimizer in (None, "adam"):
        one, two = (c.workload(batch=3, optimizer=optimizer) for c in (linear, again))
        assert one.tensors.names == two.tensors.names
        assert one.kernels.names == two.kernels.names
        assert np.array_equal(one.tensors.size_bytes, two.tensors.size_bytes)
        assert np.array_equal(one.kernels.duration_ns, two.kernels.duration_ns)
        assert np.array_equal(one.operands.ids, two.operands.ids)
        assert one.metadata == two.metadata
    other = tmp_path / "again.npz"
    again.save(other)
    assert other.read_bytes() == path.read_bytes()


def test_damaged_file(linear: Capture, tmp_path: Path) -> None:
    path = tmp_path / "linear.npz"
    linear.save(path)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)
    with pytest.raises(InputError, match=r"linear\.npz"):
        Capture.load(path)
    with pytest.raises(InputError, match=r"none\.npz: no such file"):
        Capture.load(tmp_path / "none.npz")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tensor_kind": np.zeros(4, dtype=np.uint8)}, "column tensor_kind has shape"),
        ({"param_gradient": np.array([5], dtype=np.int32)}, "param_gradient names a tensor"),
        ({"inputs": Csr.from_lists([[1, 0], [2], [1, 9]])}, "input names a tensor outside 0 to 4"),
        ({"basis": ((1, 0), (2, 0))}, "no constant term"),
    ],
)
def test_inconsistent_file(
    linear: Capture, tmp_path: Path, change: dict[str, object], message: str
) -> None:
    path = tmp_path / "bad.npz"
    replace(linear, **change).save(path)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=message):
        Capture.load(path)


def test_workload_file_is_no_capture(tmp_path: Path) -> None:
    path = tmp_path / "step.npz"
    zoo.load("resnet50", batch=1).save(path)
    with pytest.raises(InputError, match="holds a workload, but a capture is needed"):
        Capture.load(path)


def test_limits_of_a_capture(linear: Capture) -> None:
    with pytest.raises(InputError, match="a batch is needed"):
        linear.workload()
    fixed = replace(linear, metadata={"precision": "fp32", "batch": 8})
    assert fixed.workload().metadata["batch"] == 8
    with pytest.raises(InputError, match="holds for batch 8 only, not 9"):
        fixed.workload(batch=9)
    with pytest.raises(InputError, match="recorded with optimizer 'adam', not 'sgd'"):
        linear.with_optimizer("adam").workload(batch=1, optimizer="sgd")
    from_two = replace(linear, metadata={"precision": "fp32", "min_batch": 2})
    assert from_two.workload(batch=2).metadata["batch"] == 2
    with pytest.raises(InputError, match="holds from batch 2 on, not for 1"):
        from_two.workload(batch=1)
    trained = linear.with_optimizer("adam")
    assert trained.with_optimizer("adam") is trained


def test_fit_is_exact_and_refuses_fractions() -> None:
    points = [(b, s) for s in (5, 8, 13) for b in (2, 3)]
    basis = [(i, j) for j in range(3) for i in range(2)]
    want = np.array([[7, 2**50 + 1, 0, 3, 11, 5]])
    values = [evaluate(want, basis, b, s).tolist() for b, s in points]
    inverse = _inverse([[Fraction(b**i * s**j) for i, j in basis] for b, s in points])
    assert np.array_equal(_fit("x", inverse, values), want)
    values[0][0] += 1
    with pytest.raises(InputError, match="x: sizes are no polynomial"):
        _fit("x", inverse, values)


@pytest.mark.parametrize(
    "call",
    [
        lambda: capture_step(lambda batch: None),
        lambda: capture_function("some.module:build"),
        lambda: capture_target("resnet50"),
    ],
    ids=["capture_step", "capture_function", "capture_target"],
)
def test_recording_without_pytorch_says_how_to_get_it(call, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(InputError, match=r"run: pip install 'pagetide\[capture\]'"):
        call()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"target": "resnet51"}, "unknown model 'resnet51'; did you mean 'resnet50'?"),
        ({"target": "resnet50", "precision": "f32"}, "unknown precision 'f32'"),
        ({"target": "resnet50", "optimizer": "sdg"}, "unknown optimizer 'sdg'; did you mean 'sgd'"),
        ({"target": "a:b", "optimizer": "sdg"}, "unknown optimizer 'sdg'; did you mean 'sgd'"),
    ],
)
def test_bad_capture_arguments_are_told_before_pytorch_is_needed(
    arguments: dict[str, str], message: str, monkeypatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(InputError) as error:
        capture_target(**arguments)
    assert message in str(error.value)

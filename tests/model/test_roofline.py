"""The roofline: its formula, its table, and one step measured on a real GPU."""

from dataclasses import FrozenInstanceError

import numpy as np
import pytest

from pagetide.model.errors import InputError
from pagetide.model.workload import zoo
from pagetide.model.workload.roofline import (
    DEFAULT_EFFICIENCIES,
    GPUS,
    OpClass,
    classify,
    gpu,
    kernel_times_ns,
)


def time_ns(
    on: str, op_class: OpClass, *, flops: float = 0.0, traffic_bytes: float = 0.0, **rest: object
) -> float:
    half = bool(rest.pop("half", False))
    (time,) = kernel_times_ns(
        gpu(on),
        op_class=np.array([op_class], dtype=np.uint8),
        flops=np.array([flops]),
        traffic_bytes=np.array([traffic_bytes]),
        half=np.array([half]),
        **rest,  # type: ignore[arg-type]
    )
    return float(time)


def test_v100_resnet50_step_is_within_a_quarter_of_the_measured_one() -> None:
    """98.6 ms of GPU time a step: public PyTorch profiler trace of ResNet-50, batch 32, fp32, on V100."""
    step = zoo.load("resnet50", batch=32, gpu="v100-32gb")
    assert step.ideal_ns == pytest.approx(98.6e6, rel=0.25)


@pytest.mark.parametrize(
    ("ops", "share"),
    [
        (("convolution", "convolution_backward"), 0.67),
        (("native_batch_norm", "native_batch_norm_backward"), 0.16),
        (("relu_", "threshold_backward"), 0.08),
    ],
)
def test_v100_resnet50_shares_of_time(ops: tuple[str, ...], share: float) -> None:
    """Shares of the same trace."""
    step = zoo.load("resnet50", batch=32, gpu="v100-32gb")
    chosen = np.array([name.split(":")[-1] in ops for name in step.kernels.names])
    assert step.kernels.duration_ns[chosen].sum() / step.ideal_ns == pytest.approx(share, abs=0.04)


def test_memory_bound_kernel() -> None:
    on = gpu("a100-40gb")
    seconds = 1e9 / (1555e9 * DEFAULT_EFFICIENCIES[OpClass.STREAMING].memory)
    assert time_ns("a100-40gb", OpClass.STREAMING, traffic_bytes=1e9) == pytest.approx(
        on.launch_floor_ns.value + 1e9 * seconds
    )


def test_compute_bound_kernel_takes_the_peak_of_its_arithmetic() -> None:
    times = {
        arithmetic: time_ns("a100-40gb", OpClass.GEMM, flops=1e12, fp32_arithmetic=arithmetic)
        for arithmetic in ("fp32", "tf32")
    }
    times["bf16"] = time_ns("a100-40gb", OpClass.GEMM, flops=1e12, half=True)
    floor = gpu("a100-40gb").launch_floor_ns.value
    for arithmetic, tflops in {"fp32": 19.5, "tf32": 156, "bf16": 312}.items():
        assert times[arithmetic] - floor == pytest.approx(1e12 / (tflops * 1e12 * 0.7) * 1e9)


def test_launch_floor_is_all_that_an_empty_kernel_takes() -> None:
    assert time_ns("h100-80gb", OpClass.COPY) == gpu("h100-80gb").launch_floor_ns.value


def test_matrix_product_efficiency_rises_with_size() -> None:
    """Over small sizes time still rises, and FLOP/s rise too up to the full size, then stay."""
    floor = gpu("a100-40gb").launch_floor_ns.value
    sizes = 10.0 ** np.arange(4, 14, 0.25)
    times = np.array([time_ns("a100-40gb", OpClass.GEMM, flops=size) for size in sizes]) - floor
    efficiency = sizes / (times * 1e-9) / 19.5e12
    assert np.all(np.diff(times) > 0)
    assert np.all(np.diff(efficiency) > -1e-9)
    assert efficiency[0] == pytest.approx(0.3)
    assert efficiency[-1] == pytest.approx(0.7)
    assert efficiency[sizes == 1e10] == pytest.approx(0.7)


def test_every_number_has_a_source() -> None:
    for preset in GPUS.values():
        rows = [
            preset.memory_bytes,
            preset.bandwidth_bytes_per_s,
            preset.launch_floor_ns,
            *preset.peak_flops_per_s.values(),
        ]
        assert all(row.source and row.value > 0 for row in rows)
    assert set(DEFAULT_EFFICIENCIES) == set(OpClass)
    for row in DEFAULT_EFFICIENCIES.values():
        assert row.source
        assert 0 < row.memory <= 1
        assert 0 < row.compute_small <= row.compute <= 1


def test_presets_are_immutable() -> None:
    with pytest.raises(FrozenInstanceError):
        gpu("a100-40gb").launch_floor_ns.value = 0.0  # type: ignore[misc]
    with pytest.raises(TypeError):
        gpu("a100-40gb").peak_flops_per_s["fp32"] = 1  # type: ignore[index]


def test_classes_of_operators() -> None:
    ops = {
        "aten.convolution_backward.default": OpClass.CONV,
        "aten.bmm.default": OpClass.GEMM,
        "aten._scaled_dot_product_flash_attention_for_cpu_backward.default": OpClass.ATTENTION,
        "aten.native_layer_norm.default": OpClass.NORM,
        "aten._softmax.default": OpClass.SOFTMAX,
        "aten.sum.dim_IntList": OpClass.REDUCTION,
        "aten.max_pool2d_with_indices.default": OpClass.POOL,
        "aten.clone.default": OpClass.COPY,
        "aten.embedding_dense_backward.default": OpClass.GATHER,
        "aten.an_operator_of_tomorrow.default": OpClass.STREAMING,
    }
    assert classify(ops).tolist() == list(ops.values())


def test_unknown_gpu_and_arithmetic() -> None:
    with pytest.raises(InputError, match="unknown GPU 'v100-32g'; did you mean 'v100-32gb'"):
        gpu("v100-32g")
    with pytest.raises(InputError, match="has no 'tf32' arithmetic; use one of 'fp32', 'fp16'"):
        time_ns("v100-32gb", OpClass.GEMM, flops=1.0, fp32_arithmetic="tf32")

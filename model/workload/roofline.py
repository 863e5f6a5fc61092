"""Kernel times from a roofline of a named GPU.

``t = launch floor + max(FLOPs / (peak * e_compute), bytes / (bandwidth * e_memory))``, with an efficiency for each class
of operator. One constant efficiency for everything misses measured steps by 20 to 50 percent; a table by class and a
launch floor are needed, and they are enough. Every number carries where it comes from.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from types import MappingProxyType
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pagetide.model.errors import InputError, did_you_mean

__all__ = [
    "DEFAULT_EFFICIENCIES",
    "GPUS",
    "Efficiency",
    "Gpu",
    "OpClass",
    "Sourced",
    "classify",
    "gpu",
    "kernel_times_ns",
]


class OpClass(IntEnum):
    """Class of an operator: operators of one class reach similar fractions of the roofline."""

    GEMM = 0
    CONV = 1
    ATTENTION = 2
    STREAMING = 3
    NORM = 4
    SOFTMAX = 5
    REDUCTION = 6
    POOL = 7
    COPY = 8
    GATHER = 9


@dataclass(frozen=True)
class Sourced:
    """A number and where it comes from."""

    value: float
    source: str


@dataclass(frozen=True)
class Efficiency:
    """Fractions of the peaks that kernels of one class reach.

    Attributes:
        memory: fraction of the memory bandwidth, in (0, 1].
        compute: fraction of the peak FLOP/s of a large kernel, in (0, 1].
        compute_small: the same for a kernel of vanishing size, in (0, `compute`].
        full_size_flops: size at which `compute` is reached; between, the efficiency rises linearly with the logarithm of
            the size from `full_size_flops` / 1000 on. 0: the same at every size.
        source: where the numbers come from.
    """

    memory: float
    compute: float
    compute_small: float
    full_size_flops: float
    source: str


@dataclass(frozen=True)
class Gpu:
    """A GPU as the roofline needs it.

    Attributes:
        name: the preset's name, for instance ``"a100-40gb"``.
        title: the product's name.
        memory_bytes: size of the GPU's memory.
        bandwidth_bytes_per_s: peak rate of that memory.
        peak_flops_per_s: dense peak by arithmetic: ``"fp32"`` (CUDA cores), ``"tf32"``, ``"bf16"`` and ``"fp16"`` (tensor
            cores); an arithmetic the GPU does not have is absent.
        launch_floor_ns: time a kernel takes however little it does.
    """

    name: str
    title: str
    memory_bytes: Sourced
    bandwidth_bytes_per_s: Sourced
    peak_flops_per_s: Mapping[str, Sourced]
    launch_floor_ns: Sourced

    def peak(self, arithmetic: str) -> float:
        """Peak FLOP/s of an arithmetic; raises `InputError` if the GPU has no such arithmetic."""
        try:
            return self.peak_flops_per_s[arithmetic].value
        except KeyError:
            have = ", ".join(repr(name) for name in self.peak_flops_per_s)
            raise InputError(
                f"GPU {self.name!r} has no {arithmetic!r} arithmetic; use one of {have} or another GPU"
            ) from None


_TRACE_V100 = "public PyTorch profiler trace of a ResNet-50 training step (batch 32, fp32) on V100"
_TRACE_A100 = "public PyTorch profiler traces of a recommendation model on A100 (TF32)"
_FLOOR = Sourced(
    2500.0,
    "middle of the 2 to 3 us that the shortest kernels take in public PyTorch profiler traces",
)

DEFAULT_EFFICIENCIES: Final[Mapping[OpClass, Efficiency]] = MappingProxyType(
    {
        OpClass.GEMM: Efficiency(
            memory=0.80,
            compute=0.70,
            compute_small=0.30,
            full_size_flops=10e9,
            source="0.7 for large matrix products, falling to 0.3 below about 10 GFLOP: "
            f"mm 0.34-0.42, addmm 0.28-0.38, bmm 0.52-0.62 in {_TRACE_A100}; mm 0.42, addmm 0.29 in the {_TRACE_V100}",
        ),
        OpClass.CONV: Efficiency(
            memory=0.80,
            compute=0.80,
            compute_small=0.80,
            full_size_flops=0.0,
            source=f"convolution input gradients 0.83 in the {_TRACE_V100}",
        ),
        OpClass.ATTENTION: Efficiency(
            memory=0.80,
            compute=0.50,
            compute_small=0.30,
            full_size_flops=10e9,
            source="fused attention reaches 50-73 % of peak on A100 (FlashAttention-2, arXiv 2307.08691, abstract); "
            "the lower end",
        ),
        OpClass.STREAMING: Efficiency(
            memory=0.85,
            compute=1.0,
            compute_small=1.0,
            full_size_flops=0.0,
            source=f"ReLU 0.92, its backward 0.90, add_ 0.84, mul_ 0.57 in the {_TRACE_V100}",
        ),
        OpClass.NORM: Efficiency(
            memory=0.80,
            compute=1.0,
            compute_small=1.0,
            full_size_flops=0.0,
            source=f"batch normalisation 0.83 forward, 0.77 backward in the {_TRACE_V100}",
        ),
        OpClass.SOFTMAX: Efficiency(
            memory=0.80,
            compute=1.0,
            compute_small=1.0,
            full_size_flops=0.0,
            source="taken as normalisation, which moves data in the same way; not measured by itself",
        ),
        OpClass.REDUCTION: Efficiency(
            memory=0.30,
            compute=1.0,
            compute_small=1.0,
            full_size_flops=0.0,
            source=f"sum 0.15 in {_TRACE_A100}, whose sums are small; 0.3 for the larger sums of training steps",
        ),
        OpClass.POOL: Efficiency(
            memory=0.80,
            compute=1.0,
            compute_small=1.0,
            full_size_flops=0.0,
            source="taken as normalisation; not measured by itself",
        ),
        OpClass.COPY: Efficiency(
            memory=0.43,
            compute=1.0,
            compute_small=1.0,
            full_size_flops=0.0,
            source=f"copy 0.43 in {_TRACE_A100}",
        ),
        OpClass.GATHER: Efficiency(
            memory=0.39,
            compute=1.0,
            compute_small=1.0,
            full_size_flops=0.0,
            source=f"lower end of the elementwise kernels (0.39-0.80) in {_TRACE_A100}; rows are read at random",
        ),
    }
)
"""Efficiency of each class of operator, as fractions of the roofline."""


def _gpu(
    name: str,
    title: str,
    sheet: str,
    *,
    memory_gib: int,
    bandwidth_gb_per_s: float,
    tflops: Mapping[str, float],
) -> Gpu:
    return Gpu(
        name=name,
        title=title,
        memory_bytes=Sourced(memory_gib * 2**30, sheet),
        bandwidth_bytes_per_s=Sourced(bandwidth_gb_per_s * 1e9, sheet),
        peak_flops_per_s=MappingProxyType(
            {arithmetic: Sourced(value * 1e12, sheet) for arithmetic, value in tflops.items()}
        ),
        launch_floor_ns=_FLOOR,
    )


_A100_SHEET = "NVIDIA A100 Tensor Core GPU datasheet, dense rates, SXM"

GPUS: Final[Mapping[str, Gpu]] = MappingProxyType(
    {
        preset.name: preset
        for preset in (
            _gpu(
                "v100-32gb",
                "NVIDIA V100 SXM2 32 GB",
                "NVIDIA V100 Tensor Core GPU datasheet, SXM2",
                memory_gib=32,
                bandwidth_gb_per_s=900,
                tflops={"fp32": 15.7, "fp16": 125},
            ),
            _gpu(
                "a100-40gb",
                "NVIDIA A100 SXM4 40 GB",
                _A100_SHEET,
                memory_gib=40,
                bandwidth_gb_per_s=1555,
                tflops={"fp32": 19.5, "tf32": 156, "bf16": 312, "fp16": 312},
            ),
            _gpu(
                "a100-80gb",
                "NVIDIA A100 SXM4 80 GB",
                _A100_SHEET,
                memory_gib=80,
                bandwidth_gb_per_s=2039,
                tflops={"fp32": 19.5, "tf32": 156, "bf16": 312, "fp16": 312},
            ),
            _gpu(
                "h100-80gb",
                "NVIDIA H100 SXM5 80 GB",
                "NVIDIA H100 Tensor Core GPU datasheet, SXM; tensor rates halved from the sparse figures it prints",
                memory_gib=80,
                bandwidth_gb_per_s=3350,
                tflops={"fp32": 67, "tf32": 494.5, "bf16": 989.5, "fp16": 989.5},
            ),
        )
    }
)
"""The GPU presets by name."""


def gpu(name: str) -> Gpu:
    """Return the preset of that name; raises `InputError` for an unknown one.

    >>> gpu("a100-40gb").peak("fp32")
    19500000000000.0
    """
    try:
        return GPUS[name]
    except KeyError:
        raise InputError(f"unknown GPU {name!r}; {did_you_mean(name, GPUS)}") from None


_CLASS_OF_OP: Final[Mapping[str, OpClass]] = MappingProxyType(
    {
        op: op_class
        for op_class, ops in {
            OpClass.GEMM: "mm addmm bmm baddbmm addbmm addmv mv dot linear _grouped_mm _scaled_mm",
            OpClass.CONV: "convolution convolution_backward cudnn_convolution _convolution",
            OpClass.NORM: "native_batch_norm native_batch_norm_backward _native_batch_norm_legit "
            "batch_norm_backward _batch_norm_with_update cudnn_batch_norm cudnn_batch_norm_backward "
            "native_layer_norm native_layer_norm_backward native_group_norm native_group_norm_backward "
            "_fused_rms_norm _fused_rms_norm_backward",
            OpClass.SOFTMAX: "_softmax _softmax_backward_data _log_softmax _log_softmax_backward_data "
            "_safe_softmax",
            OpClass.REDUCTION: "sum mean var var_mean std amax amin max min prod any all argmax argmin "
            "linalg_vector_norm norm logsumexp nll_loss_forward nll_loss2d_forward cumsum topk sort",
            OpClass.POOL: "max_pool2d_with_indices max_pool2d_with_indices_backward avg_pool2d "
            "avg_pool2d_backward _adaptive_avg_pool2d _adaptive_avg_pool2d_backward",
            OpClass.COPY: "clone copy_ _to_copy cat stack slice_backward select_backward constant_pad_nd "
            "repeat slice_scatter select_scatter",
            OpClass.GATHER: "embedding embedding_dense_backward _embedding_bag "
            "_embedding_bag_dense_backward gather index index_select index_put_ index_put "
            "_unsafe_index_put scatter scatter_ scatter_add scatter_add_ index_add index_add_ "
            "nll_loss_backward nll_loss2d_backward masked_select take",
        }.items()
        for op in ops.split()
    }
)


def classify(ops: Iterable[str]) -> NDArray[np.uint8]:
    """Return the class of each operator.

    Args:
        ops: names of ATen operators, with or without ``aten.`` in front and the overload behind. An operator in no
            list is taken as streaming: it reads and writes each element once.

    Returns:
        uint8[K], values of `OpClass`.

    >>> [OpClass(c).name for c in classify(["aten.addmm.default", "relu_", "_scaled_dot_product_flash_attention"])]
    ['GEMM', 'STREAMING', 'ATTENTION']
    """
    classes = []
    for op in ops:
        base = op.removeprefix("aten.").split(".")[0]
        if "scaled_dot_product" in base or "attention" in base:
            classes.append(OpClass.ATTENTION)
        else:
            classes.append(_CLASS_OF_OP.get(base, OpClass.STREAMING))
    return np.array(classes, dtype=np.uint8)


def kernel_times_ns(
    on: Gpu,
    *,
    op_class: NDArray[np.uint8],
    flops: NDArray[np.float64],
    traffic_bytes: NDArray[np.float64],
    half: NDArray[np.bool_],
    fp32_arithmetic: str = "fp32",
    half_arithmetic: str = "bf16",
    efficiencies: Mapping[OpClass, Efficiency] = DEFAULT_EFFICIENCIES,
) -> NDArray[np.float64]:
    """Return the time of each kernel with all its operands in GPU memory.

    Args:
        on: the GPU.
        op_class: uint8[K], values of `OpClass`.
        flops: float64[K], floating-point operations of the matrix products and convolutions.
        traffic_bytes: float64[K], bytes read from and written to GPU memory.
        half: bool[K], the kernel computes on 16-bit floats.
        fp32_arithmetic: how matrix products and convolutions of 32-bit floats are computed: ``"fp32"`` (CUDA cores, as
            PyTorch does matrix products by default) or ``"tf32"`` (tensor cores, as it does convolutions by default).
        half_arithmetic: type of the 16-bit floats, ``"bf16"`` or ``"fp16"``.
        efficiencies: fraction of the peaks by class.

    Returns:
        float64[K], ns.

    Raises:
        InputError: the GPU has no such arithmetic.
    """
    memory = np.array([efficiencies[c].memory for c in OpClass])[op_class]
    high = np.array([efficiencies[c].compute for c in OpClass])[op_class]
    low = np.array([efficiencies[c].compute_small for c in OpClass])[op_class]
    full = np.array([efficiencies[c].full_size_flops for c in OpClass])[op_class]
    # Three decades below the full size lies the small end.
    size = np.log10(np.maximum(flops, 1.0) / np.where(full > 0, full, 1.0)) / 3.0 + 1.0
    compute = np.where(full > 0, low + (high - low) * np.clip(size, 0.0, 1.0), high)

    peak = np.full(len(flops), on.peak(fp32_arithmetic))
    if half.any():
        peak[half] = on.peak(half_arithmetic)
    seconds = np.maximum(
        flops / (peak * compute), traffic_bytes / (on.bandwidth_bytes_per_s.value * memory)
    )
    times: NDArray[np.float64] = on.launch_floor_ns.value + seconds * 1e9
    return times

"""The zoo against independent captures of the same models (``../shared/data/captures``), where they are at hand."""

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pagetide.model.workload import Phase, TensorKind, Workload, zoo

CAPTURES = Path(__file__).parents[2].parent / "shared" / "data" / "captures"
GOLDEN = CAPTURES / "golden_models.jsonl"

NAMES = {
    "bert-base": "bert-base",
    "bert-large": "bert-large",
    "dlrm": "dlrm",
    "gpt2": "gpt2",
    "inception_v3": "inception-v3",
    "resnet152": "resnet152",
    "resnet50": "resnet50",
    "senet154": "senet154",
    "vit_b_16": "vit-b16",
}
"""Models that are both in the golden file and in the zoo; the golden file has others too."""

# The golden steps were recorded with these.
OPTIMIZERS = {"vit-b16": "sgd"}

# Operators of one parameter: ours in the steady state, and the golden ones, which are of the first step (they make the
# states) and count the step counter and its read-back by the host.
OPTIMIZER_KERNELS = {"sgd": (3, 2), "adamw": (8, 13)}

needs_golden = pytest.mark.skipif(
    not GOLDEN.is_file(), reason=f"golden captures not present (no file {GOLDEN})"
)


def load(golden_name: str, batch: int, precision: str = "fp32") -> Workload:
    name = NAMES[golden_name]
    return zoo.load(name, batch=batch, precision=precision, optimizer=OPTIMIZERS.get(name))


@pytest.fixture(scope="module")
def golden() -> dict[str, dict[str, Any]]:
    rows = [json.loads(line) for line in GOLDEN.read_text().splitlines()]
    return {row["model"]: row for row in rows}


def peak_live_bytes(workload: Workload, *, first_step: bool) -> int:
    """Largest sum of live bytes, from first and last uses.

    In the first step of a training run PyTorch makes the optimizer's states in the optimizer step, and it holds the
    gradients until they are set to None after it.
    """
    kernels, kind = len(workload.kernels), workload.tensors.kind
    birth = np.full(len(workload.tensors), kernels)
    death = np.full(len(workload.tensors), -1)
    np.minimum.at(birth, workload.operands.ids, workload.operands.rows)
    np.maximum.at(death, workload.operands.ids, workload.operands.rows)
    always = workload.tensors.is_global
    if first_step:
        always = always & (kind != TensorKind.OPTIMIZER)
        death[np.isin(kind, [TensorKind.GRADIENT, TensorKind.OPTIMIZER])] = kernels - 1
    birth[always], death[always] = 0, kernels - 1
    change = np.zeros(kernels + 1, dtype=np.int64)
    np.add.at(change, birth, workload.tensors.size_bytes)
    np.add.at(change, death + 1, -workload.tensors.size_bytes)
    return int(np.cumsum(change).max())


@needs_golden
@pytest.mark.parametrize("model", sorted(NAMES))
def test_golden_figures(model: str, golden: dict[str, dict[str, Any]]) -> None:
    row = golden[model]
    step = load(model, row["B"], row["dtype"])
    phase = step.kernels.phase

    assert round(step.metadata["parameters"] / 1e6, 1) == row["params_M"]

    # PyTorch's counter, which the golden figures come from, has no formula for the CPU's fused attention.
    counted = np.array(["scaled_dot_product" not in name for name in step.kernels.names])
    for key, which in (
        ("gflop_fwd_per_sample", Phase.FORWARD),
        ("gflop_bwd_per_sample", Phase.BACKWARD),
    ):
        gflop = step.kernels.flops[(phase == which) & counted].sum() / row["B"] / 1e9
        # Golden figures are rounded to 1e-3.
        assert gflop == pytest.approx(row[key], rel=0.01, abs=5e-4)

    assert peak_live_bytes(step, first_step=True) == pytest.approx(
        row["peak_live_GB"] * 1e9, rel=0.03
    )
    assert step.total_bytes == pytest.approx(row["sum_alloc_GB"] * 1e9, rel=0.01)
    active = np.bincount(
        step.operands.rows, weights=step.tensors.size_bytes[step.operands.ids]
    ).max()
    assert active == pytest.approx(row["max_op_ws_GB"] * 1e9, rel=0.01)

    assert np.count_nonzero(phase == Phase.FORWARD) == pytest.approx(row["k_fwd"], rel=0.03)
    assert np.count_nonzero(phase == Phase.BACKWARD) == pytest.approx(row["k_bwd"], rel=0.03)
    ours, theirs = OPTIMIZER_KERNELS[step.metadata["optimizer"]]
    assert np.count_nonzero(phase == Phase.OPTIMIZER) * theirs == row["k_opt"] * ours


@needs_golden
@pytest.mark.parametrize("model", sorted(NAMES))
def test_steady_state_holds_the_optimizer_states(
    model: str, golden: dict[str, dict[str, Any]]
) -> None:
    """The peak of a steady-state step is over weights, states and all that the first step held in forward and backward."""
    row = golden[model]
    step = load(model, row["B"], row["dtype"])
    states = int(step.tensors.size_bytes[step.tensors.kind == TensorKind.OPTIMIZER].sum())
    weights = int(step.tensors.size_bytes[step.tensors.kind == TensorKind.WEIGHT].sum())
    steady = peak_live_bytes(step, first_step=False)
    assert states + weights < steady <= row["peak_live_GB"] * 1e9 * 1.03 + states


_NO_WORK = (
    "aten.empty",
    "aten.new_empty",
    "aten.lift_fresh",
    "aten._local_scalar_dense",
    "profiler.",
)


def golden_kernels(document: dict[str, Any]) -> list[tuple[str, list[int], list[int]]]:
    """Operators of forward and backward pass that make a storage or work in place, with reads and new storages."""
    kernels = []
    for phase, op, inputs, outputs in document["ops"]:
        new = [i for i, _, _ in outputs if i not in inputs and document["size"][str(i)]]
        in_place = op.split(".")[1].endswith("_")
        if phase != "opt" and not op.startswith(_NO_WORK) and (new or in_place):
            kernels.append((op, list(dict.fromkeys(inputs)), new))
    return kernels


@needs_golden
@pytest.mark.parametrize(
    ("file", "model", "batch"),
    [
        ("bert-base_mlm_b256_s128_fp32_adamw", "bert-base", 256),
        ("inceptionv3_b1536_fp32_sgd", "inception_v3", 1536),
        ("resnet152_b1280_fp32_sgd", "resnet152", 1280),
    ],
)
def test_same_graph_as_golden_capture(file: str, model: str, batch: int) -> None:
    """Operators in order, sizes, and which storage each reads: one-to-one with the golden capture."""
    with gzip.open(CAPTURES / f"{file}.json.gz", "rt") as stream:
        document = json.load(stream)
    theirs = golden_kernels(document)
    step = load(model, batch)
    ours = int(np.count_nonzero(step.kernels.phase != Phase.OPTIMIZER))
    assert ours == len(theirs)

    twin: dict[int, int] = {}
    back: dict[int, int] = {}

    def same(golden_tensor: int, tensor: int) -> bool:
        back_size = int(step.tensors.size_bytes[tensor])
        return (
            twin.setdefault(golden_tensor, tensor) == tensor
            and back.setdefault(tensor, golden_tensor) == golden_tensor
            and document["size"][str(golden_tensor)] == back_size
        )

    for k, (op, reads, new) in enumerate(theirs):
        assert step.kernels.names[k].split(":")[-1] == op.split(".")[1], k
        mine = [int(t) for t in step.inputs[k]]
        wrote = [int(t) for t in step.outputs[k] if int(t) not in mine]
        if not new:
            # The golden record lists what an in-place operator overwrites among its inputs.
            mine, wrote = list(dict.fromkeys([*wrote, *mine])), []
        assert len(reads) == len(mine), (k, op)
        assert len(new) == len(wrote), (k, op)
        pairs = [*zip(reads, mine, strict=True), *zip(new, wrote, strict=True)]
        assert all(same(g, t) for g, t in pairs), (k, op)

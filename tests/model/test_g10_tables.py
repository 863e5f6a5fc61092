"""The G10 tables: the paper's figures to the digit, and malformed files told by file and line."""

import warnings
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pagetide.model.errors import InputError
from pagetide.model.vitality import analyse
from pagetide.model.workload import Phase, TensorKind, UnusedTensorWarning
from pagetide.model.workload.g10_tables import available, load_g10

G10 = Path(__file__).parents[2].parent / "shared" / "data" / "g10"
needs_g10 = pytest.mark.skipif(
    not G10.is_dir(), reason="needs the G10 tables beside the checkout (../shared/data/g10)"
)
GPU_BYTES = 40 << 30


@needs_g10
@pytest.mark.parametrize(
    ("model", "batch", "m_percent", "cycles", "peak_percent", "kernels"),
    [
        ("BERT_Base", 256, "370.10", 8_742_558_777, 119, 1369),
        ("VIT", 1280, "461.11", 4_459_141_336, 143, 1489),
        ("Inceptionv3", 1536, "1969.46", 71_633_241_480, 335, 929),
        ("ResNet152", 1280, "2715.45", 135_107_260_924, 684, 1299),
        ("SENet154", 1024, "4277.81", 159_444_570_406, 860, 2319),
    ],
)
def test_headline_workloads(model, batch, m_percent, cycles, peak_percent, kernels) -> None:
    step = load_g10(G10, model, batch)
    assert f"{step.total_bytes / GPU_BYTES * 100:.2f}" == m_percent
    assert step.ideal_cycles(1.2e9) == cycles
    assert round(analyse(step).peak_live_bytes / GPU_BYTES * 100) == peak_percent
    assert len(step.kernels) == kernels
    assert set(step.kernels.phase.tolist()) == {Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER}
    assert (step.tensors.kind[step.tensors.is_global] == TensorKind.WEIGHT).all()


@needs_g10
def test_what_is_available() -> None:
    found = available(G10)
    assert found["BERT_Base"] == [128, 256, 384, 512, 640, 768, 1024, 1280, 1536]
    with pytest.raises(InputError, match="no G10 model 'BERT_Bsae'; did you mean 'BERT_Base'"):
        load_g10(G10, "BERT_Bsae", 256)
    with pytest.raises(InputError, match="no trace of BERT_Base at batch 255; there are 128, 256"):
        load_g10(G10, "BERT_Base", 255)


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    """Two kernels, three tensors, one workspace."""
    (tmp_path / "derived").mkdir()
    (tmp_path / "traces" / "Toy").mkdir(parents=True)
    (tmp_path / "derived" / "Toy_tensors.csv").write_text(
        "tensor_id,is_global,fp32_elems_per_sample,fixed_bytes_page_rounded\n0,1,0,8192\n1,0,1000,0\n2,0,3,0\n"
    )
    (tmp_path / "derived" / "Toy_kernels.csv").write_text(
        "kernel_id,op,parent_layer_or_op_id,inputs,outputs\n0,LoadData_A0,0,,1\n1,Linear_Forward,1,0;1,2\n"
    )
    (tmp_path / "traces" / "Toy" / "cudnn8.txt").write_text("0000 0.250000 ms\n0001 1.125000 ms")
    (tmp_path / "traces" / "Toy" / "cudnn8Workspace.txt").write_text("0000 0 B\n0001 65537 B\n")
    return tmp_path


def test_sizes_workspaces_and_times(tables: Path) -> None:
    step = load_g10(tables, "Toy", 8)
    assert step.tensors.size_bytes.tolist() == [8192, 32768, 4096, 69632]
    assert step.tensors.names[3] == "workspace.k1"
    assert step.outputs[1].tolist() == [2, 3]
    assert step.kernels.duration_ns.tolist() == [250_000.0, 1_125_000.0]
    kinds = [TensorKind.WEIGHT, TensorKind.INPUT, TensorKind.ACTIVATION, TensorKind.WORKSPACE]
    assert step.tensors.kind.tolist() == kinds


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        ("derived/Toy_tensors.csv", "tensor_id,", "id,", r"Toy_tensors.csv:1: the header must be"),
        (
            "derived/Toy_tensors.csv",
            "1,0,1000,0",
            "1,0,1000,5",
            r"Toy_tensors.csv:3: exactly one of elements",
        ),
        (
            "derived/Toy_tensors.csv",
            "1,0,1000,0",
            "1,0,many,0",
            r"Toy_tensors.csv:3: 'many' is not a whole number",
        ),
        (
            "derived/Toy_tensors.csv",
            "1,0,1000,0",
            "1,0,1000",
            r"Toy_tensors.csv:3: 3 cells, but 4 are needed",
        ),
        (
            "derived/Toy_tensors.csv",
            "1,0,1000,0",
            "5,0,1000,0",
            r"Toy_tensors.csv:3: tensor_id is '5', but 1 must follow",
        ),
        (
            "derived/Toy_kernels.csv",
            "0;1,2",
            "0;x,2",
            r"Toy_kernels.csv:3: 'x' is not a whole number",
        ),
        (
            "derived/Toy_kernels.csv",
            "0;1,2",
            "0;9,2",
            r"Toy_kernels.csv:3: tensor 9 is unknown; there are 0 to 2",
        ),
        (
            "derived/Toy_kernels.csv",
            "Linear_Forward,1,0;1,2",
            "Apply_Grad,1,0;1,9",
            r"Toy_kernels.csv:3: tensor 9 is unknown",
        ),
        ("derived/Toy_kernels.csv", "0;1,2", "0;-1,2", r"Toy_kernels.csv:3: '-1' is not a whole"),
        (
            "derived/Toy_tensors.csv",
            "1,0,1000,0",
            "1,2,1000,0",
            r"Toy_tensors.csv:3: 2 is too large; the numbers here are below 2",
        ),
        (
            "derived/Toy_tensors.csv",
            "1,0,1000,0",
            "1,0,-1000,4096",
            r"Toy_tensors.csv:3: '-1000' is not a whole number",
        ),
        (
            "derived/Toy_tensors.csv",
            "1,0,1000,0",
            "1,0,1_0,0",
            r"Toy_tensors.csv:3: '1_0' is not a whole number",
        ),
        (
            "derived/Toy_tensors.csv",
            "1,0,1000,0",
            f"1,0,1{'0' * 30},0",
            r"Toy_tensors.csv:3: 10+ is too large",
        ),
        (
            "derived/Toy_tensors.csv",
            "1,0,1000,0",
            "1,0,1000000000000000,0",
            r"Toy_tensors.csv:3: 32000000000000000 bytes at batch 8",
        ),
        (
            "derived/Toy_tensors.csv",
            "1,0,1000,0",
            '1,0,"1000",0',
            r"Toy_tensors.csv:3: '\"1000\"' is",
        ),
        (
            "traces/Toy/cudnn8.txt",
            "1.125000 ms",
            "1.125000 us",
            r"cudnn8.txt:2: expected '0001 VALUE ms', found",
        ),
        ("traces/Toy/cudnn8.txt", "1.125000", "fast", r"cudnn8.txt:2: 'fast' is not a number"),
        (
            "traces/Toy/cudnn8.txt",
            "0001 1.125000 ms",
            "",
            r"cudnn8.txt: has 1 rows, but Toy has 2 kernels",
        ),
        (
            "traces/Toy/cudnn8.txt",
            "1.125000",
            "-1.125000",
            r"cudnn8.txt:2: '-1.125000' is not a time from 0 to 1e\+09 ms",
        ),
        ("traces/Toy/cudnn8.txt", "1.125000", "1_1.5", r"cudnn8.txt:2: '1_1.5' is not a number"),
        ("traces/Toy/cudnn8.txt", "1.125000", "nan", r"cudnn8.txt:2: 'nan' is not a time"),
        ("traces/Toy/cudnn8.txt", "1.125000", "1e300", r"cudnn8.txt:2: '1e300' is not a time"),
        (
            "traces/Toy/cudnn8Workspace.txt",
            "65537",
            "-65537",
            r"cudnn8Workspace.txt:2: '-65537' is not a whole number",
        ),
        (
            "traces/Toy/cudnn8Workspace.txt",
            "65537",
            "nan",
            r"cudnn8Workspace.txt:2: 'nan' is not a whole number",
        ),
    ],
)
def test_malformed_tables(tables: Path, file, old, new, message) -> None:
    path = tables / file
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(InputError, match=message):
        load_g10(tables, "Toy", 8)


def test_missing_parts(tables: Path, tmp_path: Path) -> None:
    (tables / "derived" / "Toy_tensors.csv").unlink()
    with pytest.raises(
        InputError, match=r"Toy_tensors.csv: no such file; the folder is not complete"
    ):
        load_g10(tables, "Toy", 8)
    with pytest.raises(InputError, match="holds no G10 tables"):
        load_g10(tmp_path / "nowhere", "Toy", 8)


@pytest.mark.parametrize("file", ["derived/Toy_kernels.csv", "traces/Toy/cudnn8Workspace.txt"])
def test_a_file_that_is_no_text(tables: Path, file: str) -> None:
    (tables / file).write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match=rf"{Path(file).name}: cannot be read"):
        load_g10(tables, "Toy", 8)


@pytest.mark.parametrize("text", ["0000 0 B\n", "0000 0 B\n0001 0 B\n0002 0 B\n"])
def test_workspaces_of_another_number_of_kernels(tables: Path, text: str) -> None:
    (tables / "traces" / "Toy" / "cudnn8Workspace.txt").write_text(text)
    with pytest.raises(
        InputError, match=r"cudnn8Workspace.txt: has \d rows, but Toy has 2 kernels"
    ):
        load_g10(tables, "Toy", 8)


def test_no_workspace_file(tables: Path) -> None:
    (tables / "traces" / "Toy" / "cudnn8Workspace.txt").unlink()
    with pytest.raises(InputError, match=r"cudnn8Workspace.txt: cannot be read"):
        load_g10(tables, "Toy", 8)


@settings(
    deadline=None,
    max_examples=200,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    derandomize=True,
)
@given(data=st.data())
def test_flipped_characters_never_raise_anything_else(tables: Path, data: st.DataObject) -> None:
    """Every table with a few characters replaced loads or is an `InputError` that names the file."""
    whole = {path: path.read_bytes() for path in tables.rglob("*Toy*") if path.is_file()}
    whole |= {path: path.read_bytes() for path in (tables / "traces" / "Toy").iterdir()}
    path = data.draw(st.sampled_from(sorted(whole)))
    damaged = bytearray(whole[path])
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(damaged) - 1))
        damaged[place] = data.draw(
            st.one_of(st.sampled_from(b'0123456789,;-.e"\n\x00'), st.integers(0, 255))
        )
    try:
        path.write_bytes(damaged)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UnusedTensorWarning)
            load_g10(tables, "Toy", 8)
    except InputError as error:
        assert path.name in str(error)
    finally:
        path.write_bytes(whole[path])

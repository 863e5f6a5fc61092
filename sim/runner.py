"""The one place that runs cocotb: a built model and a test module in, a verdict out."""

import os
import shutil
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from pagetide.model.errors import ToolError
from pagetide.sim.build import Build, Trace

__all__ = ["RunResult", "SimulationError", "run"]


class SimulationError(ToolError, AssertionError):
    """A cocotb test failed, or the simulator ended without a verdict; the message says which and shows the log's end."""


@dataclass(frozen=True)
class RunResult:
    """A passed run.

    Attributes:
        tests: names of the tests that passed.
        seed: random seed of the run, for repeating it.
        folder: where log and waves are; None if nothing of the run was kept.
        waves: the waveform file, if one was asked for.
    """

    tests: tuple[str, ...]
    seed: int
    folder: Path | None
    waves: Path | None


def run(
    model: Build,
    test_module: str | Path,
    *,
    testcase: str | None = None,
    seed: int = 1,
    env: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> RunResult:
    """Run the cocotb tests of a module on a model.

    Args:
        model: from `pagetide.sim.build`.
        test_module: dotted name, or path of a Python file.
        testcase: run only this test of the module.
        seed: cocotb's random seed.
        env: further environment variables for the tests.
        folder: where log, result and waves are left; created if it is not there. If none is given, nothing is kept, but that a
            model built with tracing leaves all of it in a temporary folder, whether its tests pass or not.

    Raises:
        SimulationError: a test failed or none ran; the message holds the end of the log.
        FileNotFoundError: the test module is a path, and there is no such file.
    """
    name, path = _module(test_module)
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        return _run(model, name, path, testcase, seed, env or {}, folder)
    place = Path(tempfile.mkdtemp(prefix="pagetide-sim-"))
    if model.trace is not Trace.NONE:
        return _run(model, name, path, testcase, seed, env or {}, place)
    try:
        return replace(_run(model, name, path, testcase, seed, env or {}, place), folder=None)
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _run(
    model: Build,
    name: str,
    path: Path | None,
    testcase: str | None,
    seed: int,
    env: Mapping[str, str],
    place: Path,
) -> RunResult:
    from cocotb_tools.runner import get_runner

    results, log = (place / "results.xml").resolve(), place / "sim.log"
    results.unlink(missing_ok=True)
    runner = get_runner("verilator")
    failure = ""
    with _import_path(path):
        try:
            runner.test(
                test_module=name,
                hdl_toplevel=model.design.top,
                hdl_toplevel_lang="verilog",
                testcase=testcase,
                seed=seed,
                build_dir=model.folder,
                test_dir=place,
                results_xml=str(results),
                log_file=log,
                test_args=["--trace"] if model.trace is not Trace.NONE else [],
                extra_env=dict(env),
            )
        except (SystemExit, RuntimeError, OSError) as error:
            failure = str(error)
    passed, failed = _verdict(results)
    tail = (
        "\n".join(log.read_text(errors="replace").splitlines()[-40:]) if log.exists() else failure
    )
    waves = place / f"dump.{model.trace.value}" if model.trace is not Trace.NONE else None
    where = f"{name} on {model.design.top}, seed {seed}"
    kept = f"\nwaves: {waves}" if waves is not None and waves.exists() else ""
    if failed:
        raise SimulationError(
            f"{where}: {len(failed)} of {len(passed) + len(failed)} tests failed\n"
            + "\n".join(failed)
            + f"\nend of the log:\n{tail}{kept}"
        )
    if not passed:
        raise SimulationError(f"{where}: no test ran to its end\n{tail}{kept}")
    if waves is not None and not waves.exists():
        raise SimulationError(f"{where}: the model wrote no waves to {waves}\n{tail}")
    return RunResult(tuple(passed), seed, place, waves)


def _module(test_module: str | Path) -> tuple[str, Path | None]:
    if isinstance(test_module, Path) or test_module.endswith(".py"):
        path = Path(test_module).resolve()
        if not path.is_file():
            raise FileNotFoundError(f"{path}: no such test module")
        return path.stem, path.parent
    return test_module, None


@contextmanager
def _import_path(path: Path | None) -> Iterator[None]:
    """Put a folder first on the import path: the runner hands `sys.path` to the simulator's Python."""
    # pytest's name in the environment would change where the runner puts its files; the other two override arguments.
    hidden = {
        name: os.environ.pop(name)
        for name in ("PYTEST_CURRENT_TEST", "WAVES", "GUI")
        if name in os.environ
    }
    if path is not None:
        sys.path.insert(0, str(path))
    try:
        yield
    finally:
        if path is not None:
            sys.path.remove(str(path))
        os.environ.update(hidden)


def _verdict(results: Path) -> tuple[list[str], list[str]]:
    """Names of the passed tests; name and message of the failed ones."""
    if not results.exists():
        return [], []
    passed, failed = [], []
    for case in ElementTree.parse(results).iter("testcase"):
        problems = [*case.findall("failure"), *case.findall("error")]
        if problems:
            text = (
                problems[0].get("message")
                or problems[0].get("error_msg")
                or (problems[0].text or "").strip()
            )
            failed.append(f"  {case.get('name')}: {text}")
        elif case.find("skipped") is None:
            passed.append(str(case.get("name")))
    return passed, failed

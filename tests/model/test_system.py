"""Systems: units, errors that point at the place, and one truth for keys and defaults."""

from pathlib import Path

import pytest
import yaml
from pydantic import ValidationError

from pagetide.model.artifact.quirks import Quirks
from pagetide.model.errors import InputError
from pagetide.model.system import System, load_system, system_presets
from pagetide.model.units import format_bytes, format_seconds, parse_quantity


def test_defaults_are_table_2_of_the_paper() -> None:
    system = load_system()
    assert system == System()
    assert system.gpu.memory_bytes == 40 << 30
    assert system.host.memory_bytes == 128 << 30
    assert system.link.bandwidth_bytes_per_s == 15.754e9
    assert (system.ssd.read_bandwidth_bytes_per_s, system.ssd.write_bandwidth_bytes_per_s) == (
        3.2e9,
        3.0e9,
    )
    assert (system.ssd.read_latency_ps, system.ssd.write_latency_ps) == (20_000_000, 16_000_000)
    assert system.fault.batch_latency_ps == 45_000_000
    assert system.fault.blocks_per_batch == 42


@pytest.mark.parametrize("name", system_presets())
def test_presets_load_and_read_back(name: str, tmp_path: Path) -> None:
    system = load_system(name)
    assert system.name == name
    (tmp_path / "again.yaml").write_text(yaml.safe_dump(system.to_dict()))
    assert load_system(tmp_path / "again.yaml") == system


def test_every_key_is_described_with_a_source() -> None:
    system = load_system()
    described = {key: value for key, value, _ in system.describe()}
    flat = {
        f"{section}.{key}": value
        for section, values in system.to_dict().items()
        if isinstance(values, dict)
        for key, value in values.items()
    }
    assert {key: described[key] for key in flat} == {
        key: str(value).lower() if isinstance(value, bool) else str(value)
        for key, value in flat.items()
    }
    assert all(text for _, _, text in system.describe())


def test_the_digest_follows_every_value() -> None:
    seen = {load_system().digest()}
    for override in (
        "gpu.memory=41 GiB",
        "host.memory=1 GiB",
        "link.latency=1 us",
        "ssd.capacity=1 TB",
        "fault.batch_faults=2",
        "engine.iterations=3",
        "name=other",
    ):
        seen.add(load_system(overrides=[override]).digest())
    assert len(seen) == 8
    assert load_system().digest() in seen


def test_values_never_change() -> None:
    with pytest.raises(ValidationError):
        load_system().gpu.memory_bytes = 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gpu:\n  memroy: 3 GiB\n", "my.yaml:2: unknown key 'gpu.memroy'; did you mean 'memory'?"),
        ("gpux: 3\n", "my.yaml:1: unknown key 'gpux'; did you mean 'gpu'?"),
        (
            "gpu:\n  memory: 3 GHz\n",
            "my.yaml:2: gpu.memory: '3 GHz' is not a size; write for instance '40 GiB'",
        ),
        (
            "gpu:\n  memory: 3\n",
            "my.yaml:2: gpu.memory: 3 has no unit; a size is needed, for instance '40 GiB'",
        ),
        ("gpu:\n  memory: -3 GiB\n", "my.yaml:2: gpu.memory: input should be greater than 0"),
        ("gpu:\n  memory: 3 foo\n", "my.yaml:2: gpu.memory: '3 foo' is not a number with a unit"),
        ("gpu:\n  memory: 1e400 GiB\n", "my.yaml:2: gpu.memory: '1e400 GiB' is not finite"),
        (
            "name: x\n\nssd:\n  read_latency: 3 m\n",
            "my.yaml:4: ssd.read_latency: '3 m' is not a time",
        ),
        ("gpu: 3\n", "my.yaml:1: 'gpu' is a section with the keys memory, clock, not 3"),
        (
            "profile: artefact\n",
            "my.yaml:1: profile: input should be 'faithful' or 'artifact', but it is 'artefact'",
        ),
        (
            "engine:\n  iterations: 0\n",
            "my.yaml:2: engine.iterations: input should be greater than or equal to 1",
        ),
        ("gpu: [\n", "my.yaml:2: no valid YAML"),
        ("- a\n", "my.yaml: the file must be a mapping"),
    ],
)
def test_bad_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text, message) -> None:
    monkeypatch.chdir(tmp_path)
    Path("my.yaml").write_text(text)
    with pytest.raises(InputError) as caught:
        load_system("my.yaml")
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("gpu.x=3", "override 'gpu.x=3': unknown key 'gpu.x'; known are 'memory', 'clock'"),
        ("a", "override 'a': write section.key=value"),
        ("=3", "override '=3': write section.key=value"),
        ("name.x=3", "override 'name.x=3': 'name' is a value, not a section"),
    ],
)
def test_bad_overrides(override, message) -> None:
    with pytest.raises(InputError) as caught:
        load_system(
            "g10-table2", [override, "name=x"] if "name.x" not in override else ["name=x", override]
        )
    assert str(caught.value).startswith(message)


def test_unknown_names(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="did you mean 'g10-table2'"):
        load_system("g10-tabel2")
    with pytest.raises(InputError, match=r"nope.yaml: no such file"):
        load_system(tmp_path / "nope.yaml")
    with pytest.raises(InputError, match="cannot be read"):
        load_system(tmp_path)


def test_quantities() -> None:
    assert parse_quantity("1 GB", "byte") == 1e9
    assert parse_quantity("1 GiB", "byte") == 2**30
    assert parse_quantity("100 MB/s", "byte / second") == 1e8
    assert parse_quantity("45us", "picosecond") == 45e6
    for size in (0, 1, 4096, 10**9, 2**30, 3 * 10**12, 123_456_789):
        assert round(parse_quantity(format_bytes(size), "byte")) == size
    for time in (0, 1, 45_000_000, 10**12, 1500):
        assert round(parse_quantity(format_seconds(time), "picosecond")) == time


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name: 2024-99-99\n", "my.yaml: no valid YAML (month must be in 1..12"),
        ("name: !!int x\n", "my.yaml: no valid YAML (invalid literal"),
        (f"name: {'1' * 5000}\n", "my.yaml: no valid YAML (Exceeds the limit"),
        ("name: \x00\n", "my.yaml: no valid YAML (unacceptable character #x0000"),
        ("gpu: &a\n  b: *a\n", "my.yaml:2: 'b' refers to itself"),
        ("[" * 3000, "my.yaml: nested too deeply"),
        ("gpu:\n  memory: 1 GiB\n  memory: 2 GiB\n", "my.yaml:3: key 'gpu.memory' is there twice"),
        ("gpu: {}\nname: x\ngpu: {}\n", "my.yaml:3: key 'gpu' is there twice"),
    ],
)
def test_yaml_that_cannot_be_meant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text, message
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("my.yaml").write_text(text)
    with pytest.raises(InputError) as caught:
        load_system("my.yaml")
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "value", ["[", "a: b: c", "\x00", "2024-99-99", "[" * 3000, "!foo x", "&a [*a]", "", "3"]
)
def test_an_override_whose_value_is_no_yaml(value: str) -> None:
    with pytest.raises(InputError) as caught:
        load_system(overrides=[f"gpu.memory={value}"])
    assert str(caught.value).startswith("override 'gpu.memory=")
    assert "\n" not in str(caught.value)


def test_an_override_changes_one_section_only(tmp_path: Path) -> None:
    (tmp_path / "my.yaml").write_text("gpu: &shared {memory: 3 GiB}\nhost: *shared\n")
    system = load_system(tmp_path / "my.yaml", ["host.memory=1 GiB"])
    assert (system.gpu.memory_bytes, system.host.memory_bytes) == (3 << 30, 1 << 30)


def test_a_name_that_no_file_can_have() -> None:
    with pytest.raises(InputError, match="cannot be read"):
        load_system("a" * 5000)


def test_the_digest_follows_the_last_byte() -> None:
    near = [load_system(overrides=[f"gpu.memory={(1 << 40) + n} B"]) for n in range(2)]
    assert near[0].digest() != near[1].digest()


def test_the_digest_follows_every_key() -> None:
    """Each described key, changed alone, gives another digest."""
    plain = load_system()
    other = {"name": "x", "fault.overlap_eviction": "true"}
    skipped = {"profile"}  # it has one value only
    for key, value, _ in plain.describe():
        if key in skipped:
            continue
        number, _, unit = value.partition(" ")
        if key not in other:
            other[key] = f"{float(number) + 1:g} {'us' if unit == 's' else unit}".strip()
        changed = load_system(overrides=[f"{key}={other[key]}"])
        assert changed.digest() != plain.digest(), key


@pytest.mark.parametrize(
    "override",
    [
        *("gpu.memory=1e300 B", "host.memory=2 EiB", "ssd.capacity=1e30 B", "engine.block=1e30 B"),
        *("link.bandwidth=1e-300 B/s", "ssd.read_bandwidth=1 B/s", "ssd.write_bandwidth=1 kB/s"),
        *("link.latency=1e20 s", "ssd.read_latency=1000 s", "ssd.write_latency=2 s"),
        *("fault.batch_latency=1e30 s", "fault.batch_faults=99999999999999999999"),
        *("fault.faults_per_block=99999999999999999999", "gpu.clock=1e200 GHz"),
    ],
)
def test_values_beyond_the_engines_arithmetic(override: str) -> None:
    """The engine counts bytes and picoseconds in 63 bits; a link of 1e-300 B/s would come out as the fastest."""
    key = override.partition("=")[0]
    with pytest.raises(InputError, match=rf"^override '{override}': {key}: input should be"):
        load_system(overrides=[override])


def test_quirks_belong_to_the_profile_artifact() -> None:
    assert "quirks" not in load_system().to_dict()
    assert not any(key.startswith("quirks.") for key, _, _ in load_system().describe())
    artifact = load_system(overrides=["profile=artifact", "quirks.faster_iteration=false"])
    assert artifact.to_dict()["quirks"]["faster_iteration"] is False
    sentences = {key: text for key, _, text in artifact.describe() if key.startswith("quirks.")}
    assert set(sentences) == {f"quirks.{name}" for name in Quirks.model_fields}
    assert all(text.endswith(".") for text in sentences.values())
    with pytest.raises(InputError, match="set profile to it"):
        load_system(overrides=["quirks.faster_iteration=false"])

"""``pagetide report``: from a run's folder to a page, and its complaints."""

from pathlib import Path


def test_a_folder_becomes_a_page(cli, tmp_path: Path) -> None:
    run = ("run", "resnet50", "--batch", "16", "--set", "gpu.memory=1.2 GiB", "-p", "ideal,g10")
    assert cli(*run, "-o", "out").code == 0
    names = {path.name for path in (tmp_path / "out").iterdir()}
    for policy in ("ideal", "g10"):
        for ending in ("json", "timeline.json", "kernels.parquet", "transfers.parquet"):
            assert f"{policy}.{ending}" in names
    outcome = cli("report", "out", "-o", "page/report.html")
    assert outcome.code == 0
    assert "page/report.html (2 results" in outcome.out
    whole = (tmp_path / "page" / "report.html").read_text()
    assert "<title>resnet50" in whole
    assert cli("report", "out/g10.json", "out/ideal.json", "-o", "same.html").code == 0
    assert (tmp_path / "same.html").read_text() == whole
    assert cli("report", "out/g10.json", "-o", "one.html", "--title", "A < B").code == 0
    assert "<title>A &lt; B" in (tmp_path / "one.html").read_text()


def test_bad_input_is_told_in_one_line(cli, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "text.json").write_text("no")
    (tmp_path / "other.json").write_text("{}")
    for path, told in (
        ("missing.json", "missing.json: no such file"),
        ("missing", "missing.json: no such file"),
        ("empty", "empty: no result in this folder"),
        ("text.json", "text.json: not a Pagetide result"),
        ("other.json", "other.json: not a Pagetide result"),
    ):
        outcome = cli("report", path, "-o", "report.html")
        assert outcome.code == 2
        assert told in outcome.err
        assert outcome.err.count("\n") == 1
    assert not (tmp_path / "report.html").exists()

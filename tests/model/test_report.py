"""The report's numbers, and the page in a browser: drawn, hovered, zoomed, toggled, all without a network."""

import dataclasses
import html
import itertools
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pagetide.model import engine
from pagetide.model.errors import InputError
from pagetide.model.planners import get_planner
from pagetide.model.report import analysis, render_report, save_report
from pagetide.model.result import Result
from pagetide.model.system import load_system
from pagetide.model.workload import zoo

MAX_BYTES = 8_000_000


@pytest.fixture(scope="module")
def results() -> list[Result]:
    machine = load_system(overrides=["gpu.memory=6 GiB"])
    step = zoo.load("bert-base", batch=40)
    found = [
        engine.run(step, get_planner(policy).plan(step, machine), machine)
        for policy in ("ideal", "uvm", "g10")
    ]
    small = zoo.load("resnet50", batch=16)
    small_gpu = load_system(overrides=["gpu.memory=1.2 GiB"])
    found.append(engine.run(small, get_planner("g10").plan(small, small_gpu), small_gpu))
    return found


@pytest.fixture(scope="module")
def page(results: list[Result], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "report.html"
    save_report(path, results)
    return path


# -- numbers --------------------------------------------------------------------------------------------------------


def test_bins_keep_every_byte() -> None:
    random = np.random.default_rng(5)
    start = random.integers(0, 10**12, 500)
    end = start + random.integers(0, 10**11, 500) * (random.random(500) > 0.1)
    amount = random.integers(1, 10**9, 500)
    edges = np.linspace(0, 1.2e12, 97)
    binned = analysis.binned_rate(start, end, amount, edges)
    assert binned.sum() == pytest.approx(amount.sum(), rel=1e-9)
    slow = np.zeros(96)
    for s, e, a in zip(start, end, amount, strict=True):
        if s == e:
            slow[np.searchsorted(edges, s, side="right") - 1] += a
        else:
            inside = np.minimum(edges[1:], e) - np.maximum(edges[:-1], s)
            slow += a * np.maximum(inside, 0) / (e - s)
    assert binned == pytest.approx(slow, rel=1e-6, abs=1)


def test_link_use_adds_up_to_the_log(results: list[Result]) -> None:
    for result in results:
        log = result.transfers
        edges = np.linspace(0, max(result.total_ps, log.end_ps.max(initial=0)), 201)
        for c, channel in enumerate(result.channels):
            for n, cause in enumerate(result.causes):
                rate = analysis.link_use(result, channel, cause, edges)
                logged = log.size_bytes[(log.channel == c) & (log.cause == n)].sum()
                moved = (rate * np.diff(edges) * 1e-12).sum()
                assert moved == pytest.approx(logged, rel=1e-6, abs=1)


def test_results_with_channels_and_causes_of_their_own_go_together(results: list[Result]) -> None:
    uvm = results[1]
    odd = dataclasses.replace(
        uvm,
        policy="odd",
        channels=("host->gpu", "ssd->gpu", "gpu->host", "gpu->tape"),
        causes=("demand", "prefetch", "archive", "demand-evict"),
        traffic_bytes=np.full((4, 4), 2**30),
    )
    assert analysis.used_channels([uvm, odd])[-1] == "gpu->tape"
    assert "archive" in analysis.used_causes([odd, uvm])
    assert analysis.carried(uvm, "gpu->tape") == 0
    assert analysis.carried(odd, "gpu->tape", "archive") == 2**30
    text = render_report([uvm, odd])
    assert "GPU → tape" in text
    assert "archive" in text


def test_stall_use_adds_up_to_the_stall(results: list[Result]) -> None:
    for result in results:
        edges = np.linspace(0, result.total_ps, 201)
        share = analysis.stall_use(result, edges)
        assert (share * np.diff(edges)).sum() == pytest.approx(result.stall_ps, rel=1e-6)
        assert share.sum(axis=0).max(initial=0) <= 1 + 1e-6


def test_binned_occupancy_keeps_the_peaks(results: list[Result]) -> None:
    for result in results:
        for bins in (7, 50, 20_000):
            edges = np.linspace(0, 1.5 * result.total_ps, bins + 1)
            used = analysis.occupancy_in_bins(result, edges)
            assert used.shape == (bins, 3)
            assert used[:, 0].max() == result.occupancy_bytes[:, 0].max()
            inside = edges[:-1] < result.total_ps
            assert not used[~inside].any()
            # Each row is one that was.
            rows = {tuple(row) for row in result.occupancy_bytes.tolist()}
            assert {tuple(row) for row in used[inside].tolist()} <= rows


def test_each_bin_names_its_kernel(results: list[Result]) -> None:
    for result in results:
        edges = np.linspace(0, result.total_ps, 300)
        kernel = analysis.kernel_in_bins(result, edges)
        middle = (edges[:-1] + edges[1:]) / 2
        assert (result.ready_ps[kernel] <= middle).all()
        assert (result.end_ps[kernel] >= middle).all()


def test_worst_stalls_are_the_worst(results: list[Result]) -> None:
    stall = results[1].start_ps - results[1].ready_ps
    worst = analysis.worst_stalls(results[1], 10)
    assert [w.stall_ps for w in worst] == sorted(stall.tolist(), reverse=True)[:10]
    assert all(w.stall_ps == stall[w.kernel] == sum(w.parts_ps) for w in worst)
    assert not analysis.worst_stalls(results[0], 10)


def test_labels_tell_results_apart(results: list[Result]) -> None:
    assert analysis.label_results(results[:3]) == ["ideal", "uvm", "g10"]
    one = results[2]
    slower = {**one.system, "ssd": {**one.system["ssd"], "read_bandwidth": "1 GB/s"}}
    other = dataclasses.replace(one, system=slower)
    assert analysis.label_results([one, other]) == [
        "g10 (ssd.read_bandwidth 3.2 GB/s)",
        "g10 (ssd.read_bandwidth 1 GB/s)",
    ]
    assert analysis.label_results([one, one]) == ["g10", "g10 #2"]
    profile = dataclasses.replace(one, profile="other")
    assert analysis.label_results([one, profile]) == ["g10 (faithful)", "g10 (other)"]


# -- the page as text -----------------------------------------------------------------------------------------------


def test_the_same_results_give_the_same_page(results: list[Result], page: Path) -> None:
    text = page.read_text()
    assert render_report(results) == text
    assert page.stat().st_size < MAX_BYTES


def test_the_page_tells_the_numbers(results: list[Result], page: Path) -> None:
    text = html.unescape(re.sub(r"<wbr>", "", page.read_text().split('id="figures"')[0]))
    for result in results:
        assert result.workload in text
        assert f"{100 * result.fraction_of_ideal:.1f} %" in text
    worst = analysis.worst_stalls(results[1], 1)[0]
    assert results[1].kernels.names[worst.kernel] in text
    for key, _, meaning in load_system().describe():
        assert key in text
        assert meaning in text
    assert "profile <b>faithful</b>" in text


def test_names_cannot_break_the_page(results: list[Result]) -> None:
    bad = "</script><img src=x onerror=alert(1)>"
    one = results[1]
    kernels = dataclasses.replace(one.kernels, names=(bad,) * len(one.kernels))
    odd = dataclasses.replace(one, workload=bad, policy=bad, kernels=kernels, provenance={bad: bad})
    assert "<img" not in render_report([odd, one], title=bad).split('id="figures"')[0]
    assert bad not in render_report([odd])


def test_many_results_of_long_workloads_stay_small(results: list[Result]) -> None:
    many = [dataclasses.replace(results[1], workload=f"w{n // 6}") for n in range(60)]
    assert len(render_report(many).encode()) < MAX_BYTES


def test_a_full_log_is_told(results: list[Result]) -> None:
    full = dataclasses.replace(
        results[1], transfers=dataclasses.replace(results[1].transfers, lost=1234)
    )
    assert "1,234 rows are missing" in render_report([full])
    assert "rows are missing" not in render_report(results[:3])


def test_no_result_is_an_input_error() -> None:
    with pytest.raises(InputError, match="at least one result"):
        render_report([])


def test_a_configuration_of_another_version_is_shown_all_the_same(results: list[Result]) -> None:
    other = dataclasses.replace(results[2], system={**results[2].system, "tide": {"moon": "full"}})
    text = render_report([other])
    assert "tide.moon" in text
    assert "no source known here" in text


# Colour vision deficiencies of severity 1, on linear RGB (Machado, Oliveira, Fernandes, IEEE TVCG 2009).
VISION = {
    "common": [[1, 0, 0], [0, 1, 0], [0, 0, 1]],
    "protan": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "deutan": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
}


def lab(colour: str, vision: str) -> Any:
    """CIELAB of ``#rrggbb`` as seen with a colour vision."""
    coded = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    linear = np.where(coded <= 0.04045, coded / 12.92, ((coded + 0.055) / 1.055) ** 2.4)
    seen = np.clip(np.array(VISION[vision]) @ linear, 0, 1)
    to_xyz = np.array(
        [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    )
    ratio = to_xyz @ seen / np.array([0.9505, 1, 1.089])
    f = np.where(ratio > 0.008856, np.cbrt(ratio), 7.787 * ratio + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("vision", VISION)
def test_colours_are_told_apart_by_everybody(page: Path, vision: str) -> None:
    style = page.read_text().split("</style>")[0]
    light, dark = style.split(':root[data-theme="dark"]')
    for theme in (light, dark.split("}")[0]):
        colours = dict(re.findall(r"--([a-z]+-\d): (#[0-9a-f]{6});", theme))
        for family in ("policy", "stall", "cause", "place", "phase"):
            seen = [lab(c, vision) for name, c in colours.items() if name.startswith(family)]
            assert len(seen) >= 3
            for one, other in itertools.combinations(seen, 2):
                assert np.linalg.norm(one - other) > 12, (family, vision)


# -- the page in a browser ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("needs Chromium (Debian: apt install chromium)")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield running
        running.close()


def ink(tab: Any, figure: str) -> int:
    return int(
        tab.evaluate(
            "id => document.getElementById(id).querySelectorAll('.trace path, .bars path').length",
            figure,
        )
    )


def wait_until(tab: Any, expression: str) -> None:
    """Wait until a JavaScript expression holds; the page's security policy forbids to evaluate it inside the page."""
    for _ in range(100):
        if tab.evaluate(expression):
            return
        tab.wait_for_timeout(50)
    raise AssertionError(f"does not come true: {expression}")


def test_in_a_browser(browser: Any, page: Path, results: list[Result], tmp_path: Path) -> None:
    context = browser.new_context(
        viewport={"width": 1280, "height": 900}, color_scheme="light", reduced_motion="reduce"
    )
    tab = context.new_page()
    told: list[str] = []
    asked: list[str] = []
    tab.on("console", lambda message: told.append(message.text))
    tab.on("pageerror", lambda error: told.append(str(error)))
    tab.on("request", lambda request: asked.append(request.url))
    tab.goto(page.as_uri())
    tab.wait_for_selector("html[data-ready]")

    # Every figure is drawn: those of closed tabs when they are opened.
    figures = json.loads(tab.inner_text("#figures") or tab.text_content("#figures"))
    # Time, memory and traffic of two workloads, and a panel for each result in which something happens.
    assert len(figures) == 2 * 3 + 3
    for name, figure in figures.items():
        if re.search(r"-p\d+$", name):
            tab.click(f"#{name}-tab")
            assert tab.is_visible(f"#{name}-panel")
        tab.locator(f"#{name}").scroll_into_view_if_needed()
        wait_until(tab, f"document.querySelector('#{name} .main-svg') !== null")
        assert ink(tab, name) >= 1, name
        assert tab.eval_on_selector(f"#{name}", "e => e.data.length") == len(figure["data"])

    # Nothing is wider than the window, here and on a telephone.
    for width in (1280, 400):
        tab.set_viewport_size({"width": width, "height": 900})
        wait_until(tab, f"document.documentElement.scrollWidth <= {width}")
    tab.set_viewport_size({"width": 1280, "height": 900})
    wait_until(tab, "document.querySelector('#w0-memory .main-svg').clientWidth > 1000")

    # Hover shows a label.
    tab.locator("#w0-memory").scroll_into_view_if_needed()
    area = tab.locator("#w0-memory .nsewdrag").last.bounding_box()
    x, y = area["x"] + area["width"] * 0.3, area["y"] + area["height"] / 2
    tab.mouse.move(x, y)
    tab.mouse.move(x + 2, y, steps=3)
    tab.wait_for_selector("#tip", state="visible")
    label = tab.inner_text("#tip")
    for policy in ("ideal", "uvm", "g10"):
        assert re.search(rf"{policy}\nGPU [0-9.]+ GiB", label), label
    tab.locator("#w0-time .point").first.hover(force=True)
    tab.wait_for_selector("#w0-time .hovertext")
    assert "% of the iteration" in tab.text_content("#w0-time .hoverlayer")
    wait_until(tab, "document.getElementById('tip').hidden")
    tab.locator("#w0-p2 .nsewdrag").first.hover(force=True)
    wait_until(tab, "!document.getElementById('tip').hidden")
    told_kernel = tab.inner_text("#tip .kernel")
    assert any(told_kernel in result.kernels.names for result in results)
    # No button that would send the figure away.
    assert not tab.query_selector_all('[data-title*="hare"], [data-title*="loud"]')

    # Drag zooms the time axis, the keys move it, 0 shows all again.
    def time_range() -> list[float]:
        return tab.eval_on_selector("#w0-memory", "e => e._fullLayout.xaxis.range.map(Number)")

    whole = time_range()
    tab.locator("#w0-memory").scroll_into_view_if_needed()
    area = tab.locator("#w0-memory .nsewdrag").last.bounding_box()
    x, y = area["x"] + area["width"] * 0.3, area["y"] + area["height"] / 2
    tab.mouse.move(x, y)
    tab.mouse.down()
    tab.mouse.move(x + area["width"] * 0.2, y, steps=5)
    tab.mouse.up()
    wait_until(
        tab,
        f"document.getElementById('w0-memory')._fullLayout.xaxis.range[1] < {whole[1] * 0.9}",
    )
    zoomed = time_range()
    assert zoomed[0] == pytest.approx(0.3 * whole[1], rel=0.05)
    assert zoomed[1] == pytest.approx(0.5 * whole[1], rel=0.05)
    tab.focus("#w0-memory")
    tab.keyboard.press("ArrowRight")
    assert time_range()[0] > zoomed[0]

    # Dark mode: page and figures follow, the zoom stays.
    def colours() -> tuple[str, str]:
        return (
            tab.evaluate("getComputedStyle(document.body).backgroundColor"),
            tab.eval_on_selector("#w0-memory", "e => e._fullLayout.font.color"),
        )

    light, moved = colours(), time_range()
    tab.click("#theme")
    dark = colours()
    assert dark[0] != light[0]
    assert dark[1] != light[1]
    assert time_range() == moved
    tab.focus("#w0-memory")
    tab.keyboard.press("0")
    assert time_range() == pytest.approx(whole)

    # A legend entry hides its traces.
    entry = tab.locator("#w0-memory >> xpath=.. >> css=.entry").first
    entry.click()
    assert entry.get_attribute("aria-pressed") == "false"
    assert tab.eval_on_selector("#w0-memory", "e => e.data.some(t => t.visible === false)")

    # Tabs by keyboard.
    tab.click("#w0-p0-tab")
    assert "nothing moved" in tab.inner_text("#w0-p0-panel")
    tab.keyboard.press("ArrowRight")
    assert tab.get_attribute("#w0-p1-tab", "aria-selected") == "true"

    # Paper: light and every panel.
    tab.pdf(path=str(tmp_path / "report.pdf"))
    assert (tmp_path / "report.pdf").stat().st_size > 20_000

    assert asked == [page.as_uri()]
    assert told == []
    context.close()


def test_the_systems_dark_mode_is_followed(browser: Any, page: Path) -> None:
    context = browser.new_context(color_scheme="dark")
    tab = context.new_page()
    tab.goto(page.as_uri())
    tab.wait_for_selector("html[data-ready]")
    assert tab.get_attribute("html", "data-theme") == "dark"
    context.close()

"""The chart and the table of the README show a kept result of the suite."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from xml.etree import ElementTree

import pytest

from benchmarks.autopilot import Case
from benchmarks.figures import (
    CHART,
    MARKER,
    README,
    TIMELINE,
    draw_chart,
    draw_timeline,
    format_rows,
    insert_table,
    read_newest,
    read_results,
    read_run,
)
from benchmarks.suite import Measured, WorkloadResult
from benchmarks.training import DeviceFacts
from benchmarks.workloads.grid import make_config

SVG = "{http://www.w3.org/2000/svg}"
RATES = {"defaults": 100.0, "CPUs": 200.0, "dltune": 400.0}


def make_result() -> WorkloadResult:
    measured = (
        Measured(labels=(label,), config=make_config(32, workers), samples_per_second=(rate,))
        for workers, (label, rate) in enumerate(RATES.items())
    )
    device = DeviceFacts(name="Test CPU", torch="2.13.0", python="3.11.7")
    facts = {"date": datetime(2026, 11, 23, tzinfo=UTC), "device": device, "phase_seconds": {}, "trials": 8}
    return WorkloadResult(
        workload="tutorial", predicted=390.0, predicted_ci95=None, seconds=31.2, measured=tuple(measured), **facts
    )


def test_the_bars_of_a_workload_are_as_long_as_its_throughputs() -> None:
    chart = ElementTree.fromstring(draw_chart([make_result()]))
    bars = [bar for bar in chart.iter(f"{SVG}rect") if bar.get("width") != "10"]
    longest = float(bars[-1].attrib["width"])
    lengths = {bar.attrib["class"]: float(bar.attrib["width"]) for bar in bars}
    assert lengths == {label: pytest.approx(longest * rate / 400.0, abs=0.1) for label, rate in RATES.items()}


def test_the_line_of_a_run_rises_from_the_default_throughput_to_that_of_the_best_loader() -> None:
    run = Case(
        part="start",
        workload="tutorial",
        date=datetime(2026, 11, 23, tzinfo=UTC),
        start=0,
        end=12,
        settled_seconds=8.0,
        settled_batches=300,
        rate=(50.0,),
        whole_rate=48.0,
        plain_rate=(50.0,),
        default_rate=5.0,
        longest_waits=(),
        timeline=(5, 50),
    )
    chart = ElementTree.fromstring(draw_timeline(run))
    paths = [float(path.attrib["d"].split()[1].split("H")[0]) for path in chart.iter(f"{SVG}path")]
    (line,) = chart.iter(f"{SVG}polyline")
    assert [float(point.split(",")[1]) for point in line.attrib["points"].split()] == paths


def test_the_fastest_configuration_of_a_row_is_bold() -> None:
    row = format_rows([make_result()]).splitlines()[-1]
    assert re.sub(r"\s", "", row).endswith("|100|200|**400**|31s|")


def test_the_table_replaces_the_one_between_the_markers() -> None:
    page = f"before\n{MARKER}\nold\n{MARKER}\nafter"
    assert insert_table(page, "new") == f"before\n{MARKER}\nnew\n{MARKER}\nafter"


def test_the_readme_and_the_chart_show_the_newest_kept_result() -> None:
    results = read_results(read_newest())
    assert format_rows(results) in README.read_text(), "run: python -m benchmarks.figures"
    assert CHART.read_text() == draw_chart(results), "run: python -m benchmarks.figures"
    assert TIMELINE.read_text() == draw_timeline(read_run()), "run: python -m benchmarks.figures"

"""Makes the chart and the table of the README from a kept result of the suite.

    python -m benchmarks.figures [FILE]     # the newest in benchmarks/results

The chart is `docs/benchmarks.svg`. The table is written between the comments `<!-- benchmarks -->` of README.md.
`docs/autopilot.svg` shows a run of the autopilot, of `benchmarks.autopilot`.
"""

from __future__ import annotations

import argparse
import re
import statistics
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Final

from pydantic import TypeAdapter

from benchmarks import autopilot
from benchmarks.suite import DLTUNE, WorkloadResult

ROOT: Final = Path(__file__).parent.parent
CHART: Final = ROOT / "docs" / "benchmarks.svg"
TIMELINE: Final = ROOT / "docs" / "autopilot.svg"
README: Final = ROOT / "README.md"
MARKER: Final = "<!-- benchmarks -->"
DESCRIPTIONS: Final = {
    "tutorial": "tutorial: each sample waits 5 ms",
    "decode": "JPEG decoding",
    "reads": "reads: each sample waits 5 ms",
    "heavy_tail": "reads: 5 ms, some 100 ms",
    "queries": "one query of 20 ms per batch",
    "stream": "iterable dataset, chunks of 30 ms",
    "memory": "tensors in memory",
    "large": "samples of 4 MiB",
    "slow_start": "workers that start slowly",
}  # of the workloads with a simulated step
LABELS: Final = {"defaults": "PyTorch's defaults", "CPUs": "num_workers = CPUs", DLTUNE: "dltune"}
WIDTH: Final = 720
TEXT_WIDTH: Final = 250  # of the descriptions, left of the bars
BAR_HEIGHT: Final = 10
GROUP_HEIGHT: Final = 3 * BAR_HEIGHT + 13
TOP: Final = 34  # for the legend
STYLE: Final = """\
text { font: 12px system-ui, sans-serif; fill: #1f2328 } .value { font-size: 9px; fill: #59636e }
.defaults { fill: #b0b8c1 } .CPUs { fill: #6e87a8 } .dltune { fill: #d9730d }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 } .value { fill: #9aa4af }
  .defaults { fill: #5b6570 } .CPUs { fill: #6f8fb8 } .dltune { fill: #f0883e }
}"""


TIMELINE_SECONDS: Final = 60
TIMELINE_HEIGHT: Final = 220
TIMELINE_LEFT: Final = 30
LINE_STYLE: Final = """\
polyline.dltune, path.defaults, path.CPUs { fill: none } polyline.dltune { stroke: #d9730d; stroke-width: 2.5 }
path.defaults { stroke: #b0b8c1; stroke-dasharray: 4 } path.CPUs { stroke: #6e87a8; stroke-dasharray: 4 }"""


def read_newest() -> Path:
    """Return the newest kept result, by its date."""
    return max((ROOT / "benchmarks" / "results").glob("????-??-??.json"))


def read_results(path: Path) -> tuple[WorkloadResult, ...]:
    """Read the workloads with a simulated step from a file that `benchmarks.suite` wrote."""
    stored = TypeAdapter(tuple[WorkloadResult, ...]).validate_json(path.read_bytes())
    return tuple(one for one in stored if one.workload in DESCRIPTIONS)


def draw_chart(results: Sequence[WorkloadResult]) -> str:
    """Draw the throughput of each workload as SVG, relative to its fastest configuration."""
    height = TOP + GROUP_HEIGHT * len(results)
    parts = []
    for index, (label, name) in enumerate(LABELS.items()):
        x = TEXT_WIDTH + 160 * index
        parts.append(
            f'<rect class="{label}" x="{x}" y="6" width="10" height="10"/><text x="{x + 15}" y="15">{name}</text>'
        )
    for group, one in enumerate(results):
        y, rates = TOP + GROUP_HEIGHT * group, {label: one.rate(label) or 0.0 for label in LABELS}
        middle = y + 1.5 * BAR_HEIGHT + 4
        parts.append(
            f'<text x="{TEXT_WIDTH - 12}" y="{middle:g}" text-anchor="end">{escape(DESCRIPTIONS[one.workload])}</text>'
        )
        for row, (label, rate) in enumerate(rates.items()):
            length, top = (WIDTH - TEXT_WIDTH - 60) * rate / max(rates.values()), y + row * BAR_HEIGHT
            parts.append(
                f'<rect class="{label}" x="{TEXT_WIDTH}" y="{top}" width="{length:.1f}" height="{BAR_HEIGHT - 1}"/>'
            )
            parts.append(
                f'<text class="value" x="{TEXT_WIDTH + length + 5:.1f}" y="{top + BAR_HEIGHT - 1}">{rate:,.0f}</text>'
            )
    label = "Samples per second of whole training runs with PyTorch's defaults, one worker per CPU, and dltune's choice"
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{label}">'
    return "\n".join([head, f"<style>{STYLE}</style>", *parts, "</svg>", ""])


def read_run() -> autopilot.Case:
    """Return the kept run of the autopilot from PyTorch's default loader."""
    cases = TypeAdapter(tuple[autopilot.Case, ...]).validate_json((ROOT / autopilot.RESULTS).read_bytes())
    return next(one for one in cases if one.part == "start" and one.start == 0)


def draw_timeline(run: autopilot.Case) -> str:
    """Draw the throughput of the first minute of a run as SVG, between that of the default and of the best loader."""
    rates, best, default = run.timeline[:TIMELINE_SECONDS], statistics.median(run.plain_rate), run.default_rate or 0.0
    top = 1.15 * max(best, *rates)

    def x(second: float) -> float:
        return TIMELINE_LEFT + (WIDTH - TIMELINE_LEFT - 20) * second / TIMELINE_SECONDS

    def y(rate: float) -> float:
        return TIMELINE_HEIGHT - 30 - (TIMELINE_HEIGHT - 50) * rate / top

    points = " ".join(f"{x(second + 0.5):.1f},{y(rate):.1f}" for second, rate in enumerate(rates))
    lines = (("defaults", default, "num_workers=0 (default)"), ("CPUs", best, "best fixed num_workers"))
    parts = [
        f'<path class="{name}" d="M{x(0):.1f} {y(rate):.1f}H{x(TIMELINE_SECONDS):.1f}"/>'
        f'<text x="{x(TIMELINE_SECONDS):.1f}" y="{y(rate) - 6:.1f}" text-anchor="end">{label}: {rate:.3g}</text>'
        for name, rate, label in lines
    ]
    parts.append(f'<polyline class="dltune" points="{points}"/>')
    parts += [
        f'<text class="value" x="{x(second):.1f}" y="{TIMELINE_HEIGHT - 12}" text-anchor="middle">{second} s</text>'
        for second in range(0, TIMELINE_SECONDS + 1, 10)
    ]
    title = "Batches per second with dltune run: the dataset of PyTorch's tutorial, from the default loader"
    parts.append(f'<text x="{TIMELINE_LEFT}" y="14">{title}</text>')
    label = "Batches per second in the first minute of a training run with dltune run, from PyTorch's default loader"
    size = f"0 0 {WIDTH} {TIMELINE_HEIGHT}"
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{size}" role="img" aria-label="{label}">'
    return "\n".join([head, f"<style>{STYLE}\n{LINE_STYLE}</style>", *parts, "</svg>", ""])


def format_rows(results: Sequence[WorkloadResult]) -> str:
    """Return the table of the README; the highest throughput of a row is bold."""
    lines = [f"| workload | {' | '.join(LABELS.values())} | tuning |", "| --- | ---: | ---: | ---: | ---: |"]
    for one in results:
        rates = [one.rate(label) or 0.0 for label in LABELS]
        cells = [f"**{rate:,.0f}**" if rate == max(rates) else f"{rate:,.0f}" for rate in rates]
        lines.append(f"| {DESCRIPTIONS[one.workload]} | {' | '.join(cells)} | {one.seconds:.0f} s |")
    return "\n".join(lines)


def insert_table(page: str, table: str) -> str:
    """Return the text of a page with the table between its two markers."""
    return re.sub(f"(?s){MARKER}.*{MARKER}", lambda _: f"{MARKER}\n{table}\n{MARKER}", page)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", nargs="?", type=Path, default=read_newest())
    found = read_results(parser.parse_args().file)
    CHART.write_text(draw_chart(found))
    TIMELINE.write_text(draw_timeline(read_run()))
    README.write_text(insert_table(README.read_text(), format_rows(found)))

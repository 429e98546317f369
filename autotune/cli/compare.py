"""`dltune compare`: what differs between two results, and is one faster?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from autotune.cli.epilog import epilog
from autotune.cli.errors import exit_on_error
from autotune.cli.output import print_result
from autotune.units import format_rate

if TYPE_CHECKING:
    from autotune.profiles.compare import Comparison
    from autotune.profiles.schema import TunedProfile


@click.command(
    epilog=epilog(
        "dltune compare before.json after.json",
        "dltune compare dltune.json:cpu-4c-16g-1f0e dltune.json:cpu-8c-32g-77b2 --json",
        codes="0 compared, whatever differs; 2 a result cannot be read",
    )
)
@click.argument("first", metavar="A")
@click.argument("second", metavar="B")
@click.option("--json", "as_json", is_flag=True, help="Print the differences as JSON.")
def compare(first: str, second: str, as_json: bool) -> None:
    """Compare two results, with their certainty.

    A and B are tuned files, or FILE:PROFILE. Says what differs in machine, workload, settings and throughput, and
    whether that is beyond noise.
    """
    from autotune.profiles.compare import compare_results

    with exit_on_error():
        found = compare_results(_find_result(first), _find_result(second))
        print_result(found.model_dump_json(indent=2) if as_json else describe_comparison(found))


def _find_result(text: str) -> TunedProfile:
    """Find the result that FILE or FILE:PROFILE names."""
    from autotune.profiles.selection import select_profile

    path, colon, name = text.rpartition(":")
    if colon and not Path(text).exists():
        return select_profile(Path(path), name)
    return select_profile(Path(text))


def describe_comparison(found: Comparison) -> str:
    """Write a comparison: the verdict first, then what differs."""
    rates = f"{format_rate(found.rates[0])} -> {format_rate(found.rates[1])}"
    lines = [f"{found.first} -> {found.second}: {rates}, {_describe_ratio(found)}"]
    lines += [f"  {setting}" for setting in found.settings] or ["  the same settings"]
    if found.conditions:
        lines.append(f"  not measured alike: {'; '.join(found.conditions)}")
    return "\n".join(lines)


def _describe_ratio(found: Comparison) -> str:
    if found.ratio_ci95 is None:
        return "which cannot be compared: where nothing was delivered, there is no ratio"
    low, high = found.ratio_ci95
    ratio = f"{found.ratio:.2f} [{low:.2f}-{high:.2f}] times as fast"
    return ratio if found.is_beyond_noise else f"no difference beyond noise: {ratio}"

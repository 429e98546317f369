"""What dltune weighs, against its targets."""

from __future__ import annotations

from benchmarks.analysis.footprint import Footprint, judge_footprint


def make_footprint() -> Footprint:
    return Footprint(
        date="2026-01-02T03:04:05+00:00",
        cpus=2,
        import_seconds={"python and pydantic": (0.1,), "import autotune": (0.05,), "import autotune, and load": (0.2,)},
        parent_bytes=(100_000_000, 110_000_000),
        parent_cpu_share=0.01,
        own_seconds=(0.05,),
        tree_processes=65,
        tick_seconds=(0.005,),
        short_tick_seconds=(0.001,),
        exact_seconds=(0.1,),
        walled_seconds=(0.1,),
    )


def test_a_footprint_is_held_against_its_targets() -> None:
    assert [line.describe() for line in judge_footprint(make_footprint())] == [
        "reached",
        "missed by 40 ms",
        "reached",
        "reached",
        "reached",
        "reached",
    ]

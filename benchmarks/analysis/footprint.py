"""Is dltune light enough? What was measured of its own weight, against the targets."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from autotune.config import FrozenModel
from benchmarks.analysis.verdicts import Verdict

FOOTPRINT_FILE: Final = "footprint.json"
IMPORTS: Final = {
    "python and pydantic": "import pydantic",
    "import autotune": "import autotune",
    "import autotune, and load": "from autotune import load",
}
MAX_IMPORT_MS: Final = 60.0  # over bare Python and pydantic
MAX_PARENT_MB: Final = 120.0
MAX_PARENT_CPU_SHARE: Final = 0.02  # of one core
MAX_TICK_MS: Final = 10.0
MAX_OWN_MS: Final = 100.0  # a trial


class Footprint(FrozenModel):
    """What was measured."""

    date: str  # ISO 8601 in UTC
    cpus: int
    import_seconds: dict[str, tuple[float, ...]]  # of whole interpreters, by what they import
    parent_bytes: tuple[int, ...]  # resident memory of the tuner's process between its first and its last trial
    parent_cpu_share: float  # CPU time of that process by wall time, its children left out
    own_seconds: tuple[float, ...]  # what each trial after the first cost beside its timed window
    tree_processes: int  # in the tree that was watched
    tick_seconds: tuple[float, ...]  # of ticks that walk over that tree
    short_tick_seconds: tuple[float, ...]  # of those in between, which do not
    exact_seconds: tuple[float, ...]  # of those that measure memory exactly, once in a trial
    walled_seconds: tuple[float, ...]  # of ticks over a trial in a cgroup of its own: exact, without a walk


def judge_footprint(found: Footprint) -> list[Verdict]:
    """Hold the footprint against its targets."""
    own = [seconds * 1000 for seconds in found.own_seconds]
    detail = f"{len(own)} trials, median {statistics.median(own):.0f} ms"
    return [
        *_judge_imports(found),
        Verdict("parent's memory, peak", max(found.parent_bytes) / 1e6, "MB", MAX_PARENT_MB),
        Verdict("parent's share of a core", found.parent_cpu_share, "%", MAX_PARENT_CPU_SHARE),
        _judge_ticks(found),
        Verdict("own cost of a trial after the first, mean", statistics.fmean(own), "ms", MAX_OWN_MS, detail=detail),
    ]


def _judge_imports(found: Footprint) -> list[Verdict]:
    medians = {name: statistics.median(seconds) * 1000 for name, seconds in found.import_seconds.items()}
    bare, *others = IMPORTS
    return [
        Verdict(f"{name}: over {bare}", medians[name] - medians[bare], "ms", MAX_IMPORT_MS, detail=detail)
        for name in others
        if (detail := f"{medians[name]:.0f} against {medians[bare]:.0f} ms")
    ]


def _judge_ticks(found: Footprint) -> Verdict:
    kinds = (found.tick_seconds, found.short_tick_seconds, found.exact_seconds, found.walled_seconds)
    walking, short, exact, walled = (statistics.median(seconds) * 1000 for seconds in kinds)
    detail = (
        f"{short:.1f} ms between walks, {exact:.0f} ms with exact memory; {walled:.1f} ms, always exact, in a cgroup"
    )
    what = f"a tick over {found.tree_processes} processes, median"
    return Verdict(what, walking, "ms", MAX_TICK_MS, detail=detail)


def read_verdicts(path: Path) -> list[Verdict]:
    """Read a footprint that was written before and judge it; nothing where there is none."""
    try:
        return judge_footprint(Footprint.model_validate_json(path.read_text()))
    except (FileNotFoundError, ValidationError):
        return []

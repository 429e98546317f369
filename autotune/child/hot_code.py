"""Finds the functions of the user's code in which loading spends its time."""

from __future__ import annotations

import cProfile
import linecache
import pstats
import time
from typing import Any, Final

from autotune.child.device import single_thread
from autotune.child.loader_building import build_plain_loader
from autotune.child.workload import LoadedWorkload
from autotune.protocol.workload_profile import CostlyLine
from autotune.system.code_places import is_library

SECONDS: Final = 0.2
BATCH_SIZE: Final = 2
MAX_LINES: Final = 5
MIN_SHARE: Final = 0.05  # of loading
FETCH: Final = "torch/utils/data/_utils/fetch.py"

Function = tuple[str, int, str]
"""File, line and name, as in `pstats`."""


def find_costly_lines(workload: LoadedWorkload) -> tuple[CostlyLine, ...]:
    """Load under cProfile for a moment, and return the functions that took most of it, the costliest first."""
    if workload.own is not None:  # which may load elsewhere
        return ()
    profile, deadline = cProfile.Profile(), time.perf_counter() + SECONDS
    try:
        with single_thread(), profile:
            for _ in build_plain_loader(workload, BATCH_SIZE):
                if time.perf_counter() > deadline:
                    break
    except Exception:  # the trials will report it
        return ()
    return rank_functions(pstats.Stats(profile))


def rank_functions(stats: Any) -> tuple[CostlyLine, ...]:
    """Rank the user's functions by their own time and that of libraries below them, as shares of loading."""
    stats.calc_callees()
    below: dict[Function, float] = {}  # seconds in the user's functions that a function calls, also through libraries

    def measure(function: Function) -> float:
        if function not in below:
            below[function] = 0.0  # of recursion
            for callee, (*_, seconds) in stats.all_callees.get(function, {}).items():
                share = measure(callee) / max(1e-9, stats.stats[callee][3]) if is_foreign(callee) else 1.0
                below[function] += share * seconds
        return below[function]

    loading = sum(
        values[3] for (file, _, name), values in stats.stats.items() if file.endswith(FETCH) and name == "fetch"
    )
    own = {
        one: (values[3] - measure(one)) / max(1e-9, loading)
        for one, values in stats.stats.items()
        if not is_foreign(one)
    }
    ranked = sorted(own.items(), key=lambda item: -item[1])[:MAX_LINES]
    return tuple(
        CostlyLine(
            file=file, line=line, function=name, source=linecache.getline(file, line).strip(), share=min(1.0, share)
        )
        for (file, line, name), share in ranked
        if share >= MIN_SHARE
    )


def is_foreign(function: Function) -> bool:
    """Return whether a function is built in, or belongs to a library."""
    return function[0] == "~" or is_library(function[0])

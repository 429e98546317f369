"""Finds the functions of the user's code in which loading spends its time."""

from __future__ import annotations

import cProfile
import linecache
import pstats
import time
from typing import Final

from autotune.child.device import single_thread
from autotune.child.loader import build_plain_loader
from autotune.child.workload import LoadedWorkload
from autotune.protocol.workload_profile import CostlyLine
from autotune.system.software import is_library

SECONDS: Final = 0.2
MAX_FUNCTIONS: Final = 5
MIN_SHARE: Final = 0.05  # of loading
FETCH: Final = "torch/utils/data/_utils/fetch.py"

Function = tuple[str, int, str]
"""File, line and name, as `pstats` has them."""


def find_costly_lines(workload: LoadedWorkload) -> tuple[CostlyLine, ...]:
    """Load under cProfile for a moment, and return the functions that took most of it, the costliest first.

    A function counts with the libraries that it calls, and without other functions of the user.
    """
    if workload.own is not None:  # which may load elsewhere
        return ()
    profile, deadline = cProfile.Profile(), time.perf_counter() + SECONDS
    try:
        with single_thread(), profile:
            for _ in build_plain_loader(workload, 2):
                if time.perf_counter() > deadline:
                    break
    except Exception:  # the trials will report it
        return ()
    stats = pstats.Stats(profile)
    stats.calc_callees()
    totals: dict[Function, float] = {function: row[3] for function, row in stats.stats.items()}  # type: ignore[attr-defined]
    below: dict[Function, float] = {}  # seconds in the user's functions that a function calls, also through libraries

    def measure(function: Function) -> float:
        if function not in below:
            below[function] = 0.0  # if it calls itself
            for callee, (*_, seconds) in stats.all_callees.get(function, {}).items():  # type: ignore[attr-defined]
                below[function] += seconds * (measure(callee) / max(1e-9, totals[callee]) if is_foreign(callee) else 1)
        return below[function]

    loading = max(1e-9, sum(totals[one] for one in totals if one[0].endswith(FETCH) and one[2] == "fetch"))
    shares = {one: min(1.0, (totals[one] - measure(one)) / loading) for one in totals if not is_foreign(one)}
    ranked = sorted(((share, *one) for one, share in shares.items() if share >= MIN_SHARE), reverse=True)
    return tuple(
        CostlyLine(file=file, line=line, function=name, source=linecache.getline(file, line).strip(), share=share)
        for share, file, line, name in ranked[:MAX_FUNCTIONS]
    )


def is_foreign(function: Function) -> bool:
    """Return whether a function is built in, or belongs to a library."""
    return function[0] == "~" or is_library(function[0])

"""By which start method do workers start soonest, and what does that take where they are not forked?"""

from __future__ import annotations

import dataclasses
import json
import multiprocessing
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple, cast

from autotune.child import probe_workers
from autotune.child.fresh_interpreter import ask_fresh_interpreter
from autotune.child.main_script import NAME_IN_WORKERS, read_script
from autotune.child.workload_loading import LoadedWorkload
from autotune.config import ProcessSettings, StartMethod
from autotune.system.versions import read_start_method_in_force
from autotune.trial.workload_profile import LinearCost
from autotune.units import format_seconds

MAX_IMPORT_SECONDS: Final = 30.0  # then nothing is said of it
NOTABLE_SECONDS: Final = 0.2  # of starting a worker: less is what a fork takes
DESCRIBED_WORKERS: Final = 8
MAX_PRELOADED_SHARE: Final = 0.5  # of what importing takes: a process that takes more did not find it done
IMPORTING: Final = """
import importlib, json, multiprocessing, runpy, sys, time
sys.path[:] = json.loads(sys.argv[1])
script, name, modules = json.loads(sys.argv[2])
began = time.perf_counter()
if script is not None:
    runpy.run_path(script, run_name=name)
for module in modules:
    importlib.import_module(module)
seconds = [time.perf_counter() - began]
if "forkserver" in multiprocessing.get_all_start_methods():
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(modules)
    for _ in range(2):  # the first one waits for the server
        began = time.perf_counter()
        process = context.Process(target=importlib.import_module, args=(modules[-1],))
        process.start()
        process.join()
    seconds.append(time.perf_counter() - began)
print(json.dumps(seconds))
"""


class ImportTimes(NamedTuple):
    """What importing takes a process, in seconds."""

    alone: float
    preloaded: float | None = None  # from starting to ending one that finds it done; None where there is no forkserver


def choose_start_method(workload: LoadedWorkload, usable_cpus: float, *, may_fork: bool) -> LoadedWorkload:
    """Let workers start by the method by which the same few of them have delivered a batch each the soonest.

    The one in force stays where no other works, and where it forks and that is safe (`may_fork`), which is soonest.
    """
    in_force = workload.start_method or read_start_method_in_force()
    if in_force == "fork" and may_fork:
        return workload
    workers = probe_workers.count_round_workers(usable_cpus)
    seconds: dict[StartMethod, float] = {}
    for method in cast("list[StartMethod]", multiprocessing.get_all_start_methods()):
        if method == "fork" and not may_fork:
            continue
        process = ProcessSettings(multiprocessing_context=method)
        probe_workers.time_worker_round(workload, 1, process)  # has the server of `forkserver` started
        found = probe_workers.time_worker_round(workload, workers, process)
        seconds |= {} if found is None else {method: found}
    best = min(seconds, key=lambda method: seconds[method], default=None)
    if best in (None, in_force):
        return workload
    return dataclasses.replace(workload, parts=dataclasses.replace(workload.parts, multiprocessing_context=best))


def describe_start(workload: LoadedWorkload, start: LinearCost | None) -> str | None:
    """Say what starting workers takes that are not forked, and what of it is importing; None where it is little."""
    if start is None or workload.forks_workers or start.per_item_seconds < NOTABLE_SECONDS:
        return None
    method = workload.start_method or read_start_method_in_force()
    said = (
        f"Workers start by {method}: {DESCRIBED_WORKERS} of them take "
        f"{format_seconds(start.per_batch(DESCRIBED_WORKERS))}, {format_seconds(start.per_item_seconds)} more for each"
    )
    own, script = type(workload.parts.dataset).__module__, read_script()
    modules = ["torch"] if own in (NAME_IN_WORKERS, "torch") else ["torch", own]
    importing = time_imports(script, modules)
    if importing is None:
        return f"{said}."
    named = ", ".join([*([] if script is None else [Path(script).name]), *modules])
    said = f"{said}. Importing {named} takes a process {format_seconds(importing.alone)}, and each worker does it"
    if importing.preloaded is None or importing.preloaded > MAX_PRELOADED_SHARE * importing.alone:
        return f"{said}."
    return (
        f"{said}. By forkserver, after multiprocessing.set_forkserver_preload({json.dumps(modules)}), a process that "
        f"found {'them' if len(modules) > 1 else 'it'} imported was there and done in "
        f"{format_seconds(importing.preloaded)}."
    )


def time_imports(script: str | None, modules: Sequence[str]) -> ImportTimes | None:
    """Time in a fresh interpreter what a worker imports, and a process after it; None where that fails there."""
    order = json.dumps([script, NAME_IN_WORKERS, modules])
    seconds = ask_fresh_interpreter(IMPORTING, order, timeout_seconds=MAX_IMPORT_SECONDS)
    return None if seconds is None else ImportTimes(*seconds)

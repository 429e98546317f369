"""What dltune itself weighs: importing it, its process beside the trials, watching a large tree, its cost a trial.

python -m benchmarks.footprint [--results FOLDER]
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Final

import psutil

from autotune.config import LoaderConfig
from autotune.profiles.store import write_atomically
from autotune.runner.process import TrialProcess
from autotune.runner.sandbox import SandboxSupport, detect_sandbox
from autotune.runner.starting import Starter
from autotune.runner.usage import TREE_SECONDS
from autotune.runner.watchdog import Watchdog
from autotune.system.machine import count_whole_cpus, read_machine
from autotune.trial.budgets import plan_budgets
from autotune.trial.protocol import LoadCommand, TrialCommand, TrialReport, TrialRequest
from benchmarks.analysis.footprint import FOOTPRINT_FILE, IMPORTS, Footprint, judge_footprint
from benchmarks.analysis.verdicts import format_verdicts
from benchmarks.records import TunerTrial, list_own_costs
from benchmarks.training.environment import make_environment
from benchmarks.tuners.dltune import make_command, read_study
from benchmarks.tuners.trial import make_request
from benchmarks.workloads.catalogue import find_workload
from benchmarks.workloads.grid import as_config
from benchmarks.workloads.workload import BenchWorkload

IMPORT_ROUNDS: Final = 15
PARENT_WORKLOAD: Final = "tutorial"
PARENT_TRIALS: Final = 14
SAMPLE_SECONDS: Final = 0.1
WORKERS: Final = 64
TICKS: Final = 40
FIRST_TRIAL: Final = "trial "
SEARCH_END: Final = "search ended"


@dataclass(frozen=True, slots=True)
class ParentUsage:
    """The tuner's process while its trials run: its memory, sampled; its CPU time by wall time; the trials."""

    resident_bytes: tuple[int, ...]
    cpu_share: float
    lines: tuple[TunerTrial, ...]


def time_imports(rounds: int = IMPORT_ROUNDS) -> dict[str, tuple[float, ...]]:
    """Time interpreters that import one thing each, in turn; one more round before them warms the file cache."""
    found: dict[str, list[float]] = {name: [] for name in IMPORTS}
    for _ in range(rounds + 1):
        for name, statement in IMPORTS.items():
            started = time.perf_counter()
            subprocess.run([sys.executable, "-c", statement], check=True)
            found[name].append(time.perf_counter() - started)
    return {name: tuple(seconds[1:]) for name, seconds in found.items()}


def watch_parent(workload: BenchWorkload) -> ParentUsage:
    """Tune and sample the tuner's process from its first trial to the end of its search, then interrupt it."""
    with tempfile.TemporaryDirectory() as folder:
        command = make_command(replace(workload, trials=PARENT_TRIALS))
        began = datetime.now()
        with subprocess.Popen(
            command, cwd=folder, env=make_environment(), stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
        ) as process:
            assert process.stderr is not None
            try:
                _skip_to(process.stderr, FIRST_TRIAL)
                sizes, share = _sample_until(process, process.stderr)
            finally:
                process.send_signal(signal.SIGTERM)
                process.stderr.read()
        lines = read_study(Path(folder) / ".dltune" / "studies.db", began)
    return ParentUsage(tuple(sizes), share, tuple(lines))


def _skip_to(stream: IO[str], start: str) -> None:
    for line in stream:
        if line.startswith(start):
            return
    raise RuntimeError(f"dltune ended without a line that starts with {start!r}")


def _sample_until(process: subprocess.Popen[str], stream: IO[str]) -> tuple[list[int], float]:
    """Sample memory until the search has ended; give the samples and the share of a core used."""
    seen = psutil.Process(process.pid)
    sizes, cpu_before, started = [], seen.cpu_times(), time.monotonic()
    os.set_blocking(stream.fileno(), False)
    text = ""
    while SEARCH_END not in text:
        if process.poll() is not None:
            raise RuntimeError(f"dltune ended before its search did: {text}")
        sizes.append(seen.memory_info().rss)
        time.sleep(SAMPLE_SECONDS)
        text += "".join(_read_ready(stream))
    cpu, seconds = seen.cpu_times(), time.monotonic() - started
    os.set_blocking(stream.fileno(), True)
    used = cpu.user + cpu.system - cpu_before.user - cpu_before.system
    return sizes, used / seconds


def _read_ready(stream: IO[str]) -> Iterator[str]:
    try:
        while chunk := os.read(stream.fileno(), 1 << 16):
            yield chunk.decode(errors="replace")
    except BlockingIOError:
        return


def time_ticks(workload: BenchWorkload, sandbox: SandboxSupport) -> tuple[int, dict[str, tuple[float, ...]]]:
    """Time the watchdog's ticks over a trial with 64 living workers that have nothing left to do.

    Args:
        workload: What the workers load.
        sandbox: Sandbox around the trial; without a cgroup the tree is walked for its memory.

    Returns:
        Processes in the tree, and durations in seconds: of `walking`, `short` and `exact` ticks.
    """
    request = make_request(workload)
    watch = Watchdog(budgets=plan_budgets(read_machine(), request), stall_seconds=60, deadline_seconds=120)
    config = as_config({"batch_size": workload.batch_size, "num_workers": WORKERS, "persistent_workers": True})
    child = TrialProcess(Starter(request.workload.working_dir), watch.budgets, sandbox, lambda progress: None)
    try:
        child.command(LoadCommand(workload=request.workload), watch)
        answer = child.command(TrialCommand(trial=_make_short_trial(config)), watch)
        assert isinstance(answer, TrialReport), f"the trial with {WORKERS} workers did not end well: {answer}"
        return len(psutil.Process(child._process.pid).children(recursive=True)) + 1, _time_kinds(child, watch)
    finally:
        child.end()


def _make_short_trial(config: LoaderConfig) -> TrialRequest:
    return TrialRequest(config=config, epochs=2, seconds=2.0, fresh=True)


def _time_kinds(child: TrialProcess, watch: Watchdog) -> dict[str, tuple[float, ...]]:
    found: dict[str, list[float]] = {"walking": [], "short": [], "exact": []}
    for number in range(TICKS):
        time.sleep(TREE_SECONDS)  # a walk is due again
        found["walking"].append(_time_tick(child, watch))
        found["short"].append(_time_tick(child, watch))
        if number % (TICKS // 10) == 0:
            found["exact"].append(_time_tick(child, watch, exact=True))
    return {kind: tuple(seconds) for kind, seconds in found.items()}


def _time_tick(child: TrialProcess, watch: Watchdog, *, exact: bool = False) -> float:
    started = time.perf_counter()
    watch.judge(child._monitor.read(exact=exact), idle_seconds=0.0, running_seconds=0.0)
    return time.perf_counter() - started


def measure_footprint() -> Footprint:
    """Measure everything; about a minute."""
    usage = watch_parent(find_workload(PARENT_WORKLOAD))
    processes, ticks = time_ticks(find_workload("memory"), SandboxSupport())
    _, walled = time_ticks(find_workload("memory"), detect_sandbox())
    return Footprint(
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        cpus=count_whole_cpus(read_machine().usable_cpus),
        import_seconds=time_imports(),
        parent_bytes=usage.resident_bytes,
        parent_cpu_share=usage.cpu_share,
        own_seconds=tuple(own for own, _ in list_own_costs(usage.lines)),
        tree_processes=processes,
        tick_seconds=ticks["walking"],
        short_tick_seconds=ticks["short"],
        exact_seconds=ticks["exact"],
        walled_seconds=walled["walking"],
    )


def main() -> None:
    """Measure, print, keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=Path("benchmarks/results"))
    results = parser.parse_args().results
    found = measure_footprint()
    results.mkdir(parents=True, exist_ok=True)
    write_atomically(results / FOOTPRINT_FILE, json.dumps(found.model_dump(mode="json"), indent=1) + "\n")
    print(format_verdicts(judge_footprint(found)))


if __name__ == "__main__":
    main()

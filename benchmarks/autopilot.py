"""Measures the autopilot against plain loaders, in alternating training runs in separate processes.

    python -m benchmarks.autopilot [--parts start choice keep overhead] [--only NAME ...] [--results FILE]

start: the tutorial workload from 0, 2, 12 and 24 workers, against the best number of a grid, measured again.
choice: workloads from 2 workers, against dltune's choice in trials (from the results of `benchmarks.suite`).
keep: workloads from that choice, against the same loader without the autopilot.
overhead: seconds that the settled autopilot adds to a batch.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, Final

from pydantic import TypeAdapter
from torch.utils.data import DataLoader, IterableDataset

import autotune
from autotune.config import FrozenModel
from autotune.online.group import wait_for_ending_workers
from benchmarks.online_training import OnlineJob, OnlineRun, train_online
from benchmarks.suite import WorkloadResult
from benchmarks.tables import format_table, say
from benchmarks.workloads.catalogue import find_workload

OFFLINE: Final = Path("benchmarks/results/2026-11-27.json")
RESULTS: Final = Path("benchmarks/results/autopilot.json")
PARTS: Final = ("start", "choice", "keep", "overhead")
STARTS: Final = (0, 2, 12, 24)
GRID: Final = (0, 2, 8, 12, 14, 16, 20, 24)
LATE: Final = 0.6  # the last 40% of a run
WARM_UP: Final = 0.1  # of a short plain run
COMPARED: Final = {"start": (LATE, LATE), "choice": (LATE, WARM_UP), "keep": (0.0, 0.0)}  # what a rate leaves out
LONG_WAIT: Final = 1.5  # times the longest of the waits before
START_SECONDS: Final = 90.0
CHOICE_SECONDS: Final = 60.0
PLAIN_SECONDS: Final = 15.0
KEEP_SECONDS: Final = 30.0
ROUNDS: Final = 3
EPOCH_SECONDS: Final = 20.0  # at the settings that trials chose
KEEP_EPOCH_SECONDS: Final = 5.0
OVERHEAD_BATCHES: Final = 5000
OVERHEAD_BATCH_SIZE: Final = 32
OVERHEAD_ROUNDS: Final = 41


class Case(FrozenModel):
    """One comparison.

    Attributes:
        part: The part of the benchmark.
        workload: Name of the workload.
        date: End of the measurement, UTC.
        start: Workers at the start.
        end: Workers at the end.
        settled_seconds: Time until the autopilot settled.
        settled_batches: Batches until then.
        rate: Batches per second: of the last 40% (of the whole run in the part `keep`), of each run.
        whole_rate: Batches per second of the first minute.
        plain_rate: Of each run of the plain loader with the best settings: of the same part of the run, or without its
            first 10% in the part `choice`.
        default_rate: Of the plain loader without workers; None if it was not measured.
        longest_waits: After each change, the longest of 40 waits over the longest of the 40 before, forks not counted.
        plain_longest_waits: The same after every 40 batches of the plain loader.
        timeline: Batches in each second of the run.
    """

    part: str
    workload: str
    date: datetime
    start: int
    end: int
    settled_seconds: float | None
    settled_batches: int | None
    rate: tuple[float, ...]
    whole_rate: float
    plain_rate: tuple[float, ...]
    default_rate: float | None = None
    longest_waits: tuple[float, ...]
    plain_longest_waits: tuple[float, ...] = ()
    timeline: tuple[int, ...] = ()

    @property
    def share(self) -> float:
        """The rate over that of the plain loader, medians."""
        return statistics.median(self.rate) / statistics.median(self.plain_rate)


def measure_start(offline: dict[str, WorkloadResult]) -> list[Case]:
    """Compare runs from several numbers of workers with the best of a grid."""
    name = "tutorial"
    batches = round(EPOCH_SECONDS * offline_rate(offline[name]))
    grid: dict[int, list[OnlineRun]] = {}
    for _ in range(2):
        for workers in GRID:
            job = OnlineJob(
                workload=name, workers=workers, is_tuned=False, seconds=PLAIN_SECONDS, epoch_batches=batches
            )
            grid.setdefault(workers, []).append(train_online(job))
    rates = {workers: statistics.median(one.rate(WARM_UP) for one in runs) for workers, runs in grid.items()}
    best = max(rates, key=lambda workers: rates[workers])
    say(f"{name}: grid " + ", ".join(f"{workers}: {rate:.1f}" for workers, rate in rates.items()))

    def train(workers: int, *, is_tuned: bool) -> OnlineRun:
        job = OnlineJob(workload=name, workers=workers, is_tuned=is_tuned, seconds=START_SECONDS, epoch_batches=batches)
        return train_online(job)

    before = train(best, is_tuned=False)  # the best of several noisy rates is too high
    runs = {start: train(start, is_tuned=True) for start in STARTS}
    plain = [before, train(best, is_tuned=False)]
    cases = [make_case("start", name, start, [run], plain) for start, run in runs.items()]
    return [show(case.model_copy(update={"default_rate": rates[0]})) for case in cases]


def measure_choice(offline: dict[str, WorkloadResult], name: str) -> Case:
    """Compare a run from 2 workers with a plain one with the settings that trials chose."""
    found, batches = offline[name], round(EPOCH_SECONDS * offline_rate(offline[name]))
    tuned = OnlineJob(workload=name, workers=2, is_tuned=True, seconds=CHOICE_SECONDS, epoch_batches=batches)
    plain = make_plain(found, batches, PLAIN_SECONDS)
    before, run, after = train_online(plain), train_online(tuned), train_online(plain)
    return show(make_case("choice", name, 2, [run], [before, after]))


def measure_keep(offline: dict[str, WorkloadResult], name: str) -> Case:
    """Compare whole runs from the settings that trials chose with plain ones, alternating."""
    given = make_plain(offline[name], round(KEEP_EPOCH_SECONDS * offline_rate(offline[name])), KEEP_SECONDS)
    first = train_online(given.model_copy(update={"seconds": PLAIN_SECONDS}))  # epochs were shorter in trials
    plain = given.model_copy(update={"epoch_batches": round(KEEP_EPOCH_SECONDS * first.rate(WARM_UP))})
    tuned = plain.model_copy(update={"is_tuned": True})
    runs = [train_online(job) for number in range(ROUNDS) for job in ((plain, tuned), (tuned, plain))[number % 2]]
    are_tuned, are_plain = ([one for one in runs if one.is_tuned is wanted] for wanted in (True, False))
    return show(make_case("keep", name, plain.workers, are_tuned, are_plain))


def offline_rate(found: WorkloadResult) -> float:
    """Return batches per second of dltune's choice in whole runs."""
    return (found.rate("dltune") or 1.0) / (found.measured[0].config.dataloader.batch_size or 1)


def make_plain(found: WorkloadResult, epoch_batches: int, seconds: float) -> OnlineJob:
    """Return a run of a plain loader with the settings that trials chose."""
    chosen = next(one.config.dataloader for one in found.measured if "dltune" in one.labels)
    return OnlineJob(
        workload=found.workload,
        workers=chosen.num_workers,
        prefetch=chosen.prefetch_factor or 2,
        is_tuned=False,
        seconds=seconds,
        epoch_batches=epoch_batches,
    )


def make_case(part: str, name: str, start: int, runs: list[OnlineRun], plain: list[OnlineRun]) -> Case:
    """Sum up the runs of a comparison."""
    run, (late, warm_up) = runs[0], COMPARED[part]
    return Case(
        part=part,
        workload=name,
        date=datetime.now(UTC).replace(microsecond=0),
        start=start,
        end=run.workers,
        settled_seconds=run.settled_seconds,
        settled_batches=run.settled_at,
        rate=tuple(one.rate(late) for one in runs),
        whole_rate=run.rate(0.0, min(1.0, 60.0 / run.ends[-1])),
        plain_rate=tuple(one.rate(warm_up) for one in plain),
        longest_waits=tuple(ratio for one in runs for ratio in one.longest_waits),
        plain_longest_waits=tuple(ratio for one in plain for ratio in one.longest_waits),
        timeline=tuple(sum(second <= one < second + 1 for one in run.ends) for second in range(int(run.ends[-1]))),
    )


def measure_overhead() -> list[float]:
    """Return the seconds that the autopilot adds to a batch while nothing changes, in each of several rounds.

    A batch is a list of 32 numbers for its worker, and one number back: sending tensors takes ten times as long as all
    of the autopilot, and varies by more than that.
    """
    samples: Any = range(OVERHEAD_BATCHES * OVERHEAD_BATCH_SIZE)

    def train(*, is_tuned: bool) -> float:
        loader: Any = DataLoader(samples, OVERHEAD_BATCH_SIZE, num_workers=1, collate_fn=len)
        if is_tuned:
            autotune.autopilot(loader, None, quiet=True)
            iter(loader)  # makes its state
            loader.autopilot_state.controller.has_converged = True
        wait_for_ending_workers()
        began = time.perf_counter()
        for _ in loader:
            pass
        return (time.perf_counter() - began) / OVERHEAD_BATCHES

    return [train(is_tuned=True) - train(is_tuned=False) for _ in range(OVERHEAD_ROUNDS)]


def show(case: Case) -> Case:
    """Print a comparison when it is measured."""
    settled = "-" if case.settled_seconds is None else f"{case.settled_seconds:.1f} s, {case.settled_batches} batches"
    say(
        f"{case.part:<7}{case.workload:<13}{case.start} -> {case.end} workers  settled {settled}  "
        f"rate {statistics.median(case.rate):.1f} of {statistics.median(case.plain_rate):.1f}: {case.share:.1%}"
    )
    return case


def format_cases(cases: Sequence[Case]) -> str:
    """Return the tables of all comparisons."""
    rows = []
    for one in cases:
        plain = statistics.median(one.plain_rate)
        rows.append(
            (
                one.part,
                one.workload,
                f"{one.start} -> {one.end}",
                "-" if one.settled_seconds is None else f"{one.settled_seconds:.1f} s",
                "-" if one.settled_batches is None else f"{one.settled_batches}",
                f"{statistics.median(one.rate):.1f}",
                f"{plain:.1f}",
                f"{one.share:.1%}",
                f"{one.whole_rate / plain:.1%}",
                f"{max(one.longest_waits):.2f}" if one.longest_waits else "-",
            )
        )
    head = ("part", "workload", "workers", "settled", "batches", "batches/s", "plain", "share", "minute", "wait ratio")
    lines = [format_table(head, rows), ""]
    shares = {part: [one.share for one in cases if one.part == part] for part in PARTS}
    lines += [
        f"{part}: median {statistics.median(found):.1%}, worst {min(found):.1%}"
        for part, found in shares.items()
        if found
    ]
    for name, ratios in (
        ("after a change", [ratio for one in cases for ratio in one.longest_waits]),
        ("without one", [ratio for one in cases for ratio in one.plain_longest_waits]),
    ):
        if ratios:
            longer = sum(ratio > LONG_WAIT for ratio in ratios) / len(ratios)
            lines.append(f"waits {name}: {longer:.0%} of {len(ratios)} longer than {LONG_WAIT} times those before")
    return "\n".join(lines)


def main() -> None:
    """Measure the parts of the command line, store each result, and print the tables."""
    offline = {one.workload: one for one in TypeAdapter(tuple[WorkloadResult, ...]).validate_json(OFFLINE.read_bytes())}
    names = [name for name in offline if not isinstance(resolve_name(find_workload(name).dataset)(), IterableDataset)]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="NAME", help=", ".join(names))
    parser.add_argument("--results", type=Path, default=RESULTS, help=f"file of the results ({RESULTS})")
    given = parser.parse_args()
    stored, cases = TypeAdapter(tuple[Case, ...]), dict[tuple[str, str, int], Case]()
    if given.results.exists():
        cases = {(one.part, one.workload, one.start): one for one in stored.validate_json(given.results.read_bytes())}

    def store(found: Iterable[Case]) -> None:
        cases.update({(one.part, one.workload, one.start): one for one in found})
        given.results.write_bytes(stored.dump_json(tuple(cases.values()), indent=1))

    if "start" in given.parts:
        store(measure_start(offline))
    for part, measure in (("choice", measure_choice), ("keep", measure_keep)):
        for name in given.only if part in given.parts else ():
            store([measure(offline, name)])
    print(format_cases(tuple(cases.values())))
    if "overhead" in given.parts:
        low, middle, high = (1e6 * one for one in statistics.quantiles(measure_overhead(), n=4))
        print(f"overhead: {middle:.1f} us a batch (quartiles of {OVERHEAD_ROUNDS} rounds: {low:.1f}, {high:.1f})")


if __name__ == "__main__":
    main()

"""Records exhaustive grids, on which samplers are compared in seconds instead of hours.

A trace holds the profile of a workload and the throughput of every configuration of a product grid, measured by short
trials in one warm process, twice, each time in another random order. A sampler sees one pass and is judged by the
other, so that the same random error does not both select and praise a configuration.

    python -m benchmarks.traces [--only NAME ...] [--seconds 0.8] [--folder benchmarks/traces]
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from autotune.config import FrozenModel, LoaderConfig
from autotune.protocol.budgets import plan_budgets
from autotune.protocol.measurement import EpochTrace, Measurement
from autotune.protocol.messages import TrialRequest
from autotune.protocol.throughput import estimate
from autotune.protocol.workload_profile import WorkloadProfile
from autotune.request import TuningRequest, WorkloadRequest
from autotune.runner.runner import TrialRunner
from autotune.search.plan import Plan, make_plan
from autotune.search.space import SearchSpace
from autotune.settings import SETTINGS, Choice
from autotune.system.machine import MachineProfile, read_machine

if TYPE_CHECKING:
    from benchmarks.workloads.workload import BenchWorkload

TRACES: Final = Path("benchmarks/traces")
RECORDED: Final = ("tutorial", "decode", "heavy_tail", "large", "slow_start")
WORKERS: Final = {
    "tutorial": (0, 1, 2, 4, 6, 8, 10, 12, 16, 20),
    "heavy_tail": (0, 4, 8, 12, 16, 24),
    "slow_start": (0, 1, 2, 4, 6, 8),
    "decode": (0, 1, 2, 3, 4, 6),
    "large": (0, 1, 2, 3, 4),
}
PREFETCH: Final = {"tutorial": (1, 2, 4), "heavy_tail": (1, 2, 4)}
FEW_PREFETCH: Final = (1, 2)
PRECISION: Final = 0.03


class Trace(FrozenModel):
    """An exhaustive grid of one workload."""

    name: str
    recorded_at: datetime  # UTC
    request: TuningRequest
    machine: MachineProfile
    workload: WorkloadProfile
    space: SearchSpace
    configs: tuple[LoaderConfig, ...]
    passes: tuple[tuple[float, ...], ...]  # samples per second of each configuration; 0 if it failed
    seconds: tuple[float, ...]  # wall time of each trial of the first pass

    def plan(self) -> Plan:
        """Return the plan of a run over the recorded grid."""
        budgets = plan_budgets(self.machine, self.request)
        plan = make_plan(self.request, self.machine, self.workload, budgets)
        return replace(plan, space=make_space(**self.space.choices))  # later settings stay at their defaults


def make_space(**choices: tuple[Choice, ...]) -> SearchSpace:
    """Return a space of these choices and, for other settings, those of the table; without rarely searched ones."""
    rare = {"device_prefetch": (False,), "worker_threads": (None,)}
    return SearchSpace({name: choices.get(name, rare.get(name, SETTINGS[name].choices)) for name in SETTINGS})


def make_request(workload: BenchWorkload) -> TuningRequest:
    """Return the request that the command line makes of a workload's options."""
    return TuningRequest(
        workload=WorkloadRequest(
            dataset=workload.dataset,
            dataset_args=workload.dataset_args,
            step=workload.step,
            step_seconds=None if workload.step else workload.step_seconds,
            device=workload.device or "auto",
        ),
        fixed={"batch_size": workload.batch_size},
        epochs=workload.epochs,
    )


def record(workload: BenchWorkload, seconds: float) -> Trace:
    """Record one workload by trials that measure for at most so many seconds each."""
    request, machine = make_request(workload), read_machine()
    budgets = plan_budgets(machine, request)
    with TrialRunner(request.workload, request.stall_seconds) as runner:
        sizes = (workload.batch_size, workload.batch_size)
        profile = runner.probe(sizes, budgets, machine.usable_cpus)
        plan = make_plan(request, machine, profile, budgets)
        space = make_space(
            batch_size=(workload.batch_size,),
            num_workers=WORKERS[workload.name],
            prefetch_factor=PREFETCH.get(workload.name, FEW_PREFETCH),
            pin_memory=(False,),
            sharing_strategy=("file_descriptor",),
        )
        configs = tuple(space.configs)
        first, second = (_run_pass(runner, plan, configs, seconds, seed) for seed in (1, 2))
    return Trace(
        name=workload.name,
        recorded_at=datetime.now(UTC).replace(microsecond=0),
        request=request,
        machine=machine,
        workload=profile,
        space=space,
        configs=configs,
        passes=tuple(tuple(round(rate, 2) for rate, _ in rows) for rows in (first, second)),
        seconds=tuple(round(taken, 2) for _, taken in first),
    )


def _run_pass(
    runner: TrialRunner, plan: Plan, configs: Sequence[LoaderConfig], seconds: float, seed: int
) -> list[tuple[float, float]]:
    """Measure all configurations in a random order; return throughput and wall time of each in the given order."""
    found: dict[LoaderConfig, tuple[float, float]] = {}
    for config in random.Random(seed).sample(configs, len(configs)):
        request = TrialRequest(config=config, epochs=plan.request.epochs, seconds=seconds, precision=PRECISION)
        began = time.monotonic()
        result = runner.run(request)
        taken = time.monotonic() - began
        rate = estimate(result.measurement, config, plan.request.epochs) if result.measurement is not None else None
        found[config] = rate.samples_per_second if rate is not None else 0.0, taken
    return [found[config] for config in configs]


def make_measurement(batches: int, batch_size: int, epoch_seconds: float, epochs: int) -> Measurement:
    """Return the measurement of a trial of equal epochs."""
    trace = EpochTrace(
        batch_seconds=tuple(epoch_seconds * (number + 1) / batches for number in range(batches)),
        end_seconds=epoch_seconds,
        wait_seconds=0.0,
        samples=batches * batch_size,
        closed_after=None,
    )
    return Measurement(epochs=(trace,) * epochs, epoch_batches=batches, stopped="time")


def main() -> None:
    """Record the workloads of the command line."""
    from benchmarks.workloads.catalogue import find_workload

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=RECORDED, choices=RECORDED)
    parser.add_argument("--seconds", type=float, default=0.8)
    parser.add_argument("--folder", type=Path, default=TRACES)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    for name in options.only:
        started = time.monotonic()
        trace = record(find_workload(name), options.seconds)
        (options.folder / f"{name}.json").write_text(trace.model_dump_json() + "\n")
        print(f"{name}: {len(trace.configs)} configurations, twice, in {time.monotonic() - started:.0f} s", flush=True)


if __name__ == "__main__":
    main()

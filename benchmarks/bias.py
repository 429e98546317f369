"""Compares validation runs with whole training runs of the same configuration, alternating, so that drift cancels out.

What remains is the bias of a prediction: of its processes, of its short runs, of the composition of a whole run.

    python -m benchmarks.bias [--rounds 8] WORKLOAD:WORKERS:PREFETCH[:restart] ...

With `restart`, workers are not persistent.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Sequence
from typing import Any

from autotune.config import LoaderConfig
from autotune.progress import ProgressListener
from autotune.protocol.budgets import plan_budgets
from autotune.request import TuningRequest, WorkloadRequest
from autotune.runner.runner import TrialRunner
from autotune.system.machine import read_machine
from autotune.validation.candidate_runs import CandidateRuns
from autotune.validation.runs import measure_run
from benchmarks.suite import train_whole_run
from benchmarks.tables import format_table, say
from benchmarks.workloads.catalogue import find_workload
from benchmarks.workloads.grid import as_config
from benchmarks.workloads.workload import BenchWorkload


def measure(workload: BenchWorkload, config: LoaderConfig, rounds: int) -> tuple[list[float], list[float]]:
    """Return the samples per second that validation runs predict, and those of whole runs, alternating."""
    timed: dict[str, Any] = {"step": workload.step} if workload.step else {"step_seconds": workload.step_seconds}
    given = WorkloadRequest(dataset=workload.dataset, dataset_args=workload.dataset_args, device="cpu", **timed)
    request, machine = TuningRequest(workload=given, epochs=workload.epochs), read_machine()
    predicted, whole = CandidateRuns(config), list[float]()
    with TrialRunner(given, request.stall_seconds) as runner:
        budgets = plan_budgets(machine, request)
        profile = runner.probe([workload.batch_size], budgets, machine.usable_cpus)
        runner.limit(plan_budgets(machine, request, profile), profile)
        for number in range(rounds):
            for is_whole in (number % 2 == 0, number % 2 == 1):
                if is_whole:
                    runner.close()
                    whole.append(train_whole_run(workload, config).extrapolate(workload.epochs))
                else:
                    measure_run(request, predicted, runner.run, ProgressListener(), number)
            say(f"{workload.name}: {predicted.rates[number]:,.0f} predicted, {whole[-1]:,.0f} in a whole run")
    return list(predicted.rates.values()), whole


def spread(rates: Sequence[float]) -> float:
    """Return the standard deviation of the logarithms."""
    return statistics.stdev(map(math.log, rates))


def main() -> None:
    """Measure the configurations of the command line, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=8, help="pairs of runs (8)")
    parser.add_argument("configs", nargs="+", metavar="WORKLOAD:WORKERS:PREFETCH[:restart]")
    given, rows = parser.parse_args(), list[tuple[str, ...]]()
    for one in given.configs:
        name, workers, prefetch, *restart = one.split(":")
        workload = find_workload(name)
        kwargs: dict[str, Any] = {"batch_size": workload.batch_size, "num_workers": int(workers)}
        if int(workers):
            kwargs |= {"prefetch_factor": int(prefetch), "persistent_workers": not restart}
        predicted, whole = measure(workload, as_config(kwargs), given.rounds)
        ratios = [math.log(first / second) for first, second in zip(predicted, whole, strict=True)]
        error = statistics.stdev(ratios) / math.sqrt(len(ratios))
        rows.append(
            (
                one,
                f"{statistics.median(predicted):,.0f}",
                f"{statistics.median(whole):,.0f}",
                f"{math.expm1(statistics.fmean(ratios)):+.1%} +- {error:.1%}",
                f"{spread(predicted):.1%}",
                f"{spread(whole):.1%}",
            )
        )
    head = ("configuration", "predicted", "whole runs", "bias, standard error", "spread of predicted", "of whole runs")
    print(format_table(head, rows))


if __name__ == "__main__":
    main()

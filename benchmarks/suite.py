"""Is the promise kept, is the choice as good as the best of a grid, and what would others have chosen?

For each workload, in one sitting: let dltune, random search and loadtune choose; look at a grid of configurations by
short runs; then measure what was chosen, the best of the grid and some others in turn, round by round, each time
once by a trial (the prediction) and once by a whole training run (the truth). About seven minutes a workload.

    python -m benchmarks.suite [--only NAME ...] [--results FOLDER] [--rounds 3] [--skip-peers] [--again] [--quick]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Final

from autotune import DltuneError
from autotune.config import LoaderConfig
from autotune.knobs import describe_config
from autotune.system.machine import count_whole_cpus, read_machine
from benchmarks import report
from benchmarks.pace import EARLY_SECONDS
from benchmarks.peers import run_loadtune, search_at_random, set_by_hand, tune
from benchmarks.records import Entrant, Screened, Tuning, WorkloadResult, merge_labels, read_results, save_result
from benchmarks.trial import predict
from benchmarks.whole_run import Trained, WholeRun, measure
from benchmarks.workloads import WORKLOADS, BenchWorkload, as_config, list_grid, list_spread, make_sibling

RESULTS: Final = Path("benchmarks/results")
SCREEN_EPOCHS: Final = 3
HOPELESS_FACTOR: Final = 2.5  # times the shortest run of the grid; a slower one is given up
LEAST_SCREEN_SECONDS: Final = 1.5
FINALISTS: Final = 2  # of the grid
MOST_RUN_SECONDS: Final = 10.0  # of a whole run; a slower configuration is trained, and predicted, for fewer epochs
LONGEST_RUN_SECONDS: Final = 20.0  # of two epochs; what takes longer is left out
FEWEST_EPOCHS: Final = 2
QUICK_OPTIONS: Final = ("--trials", "4", "--trial-time", "1s")
QUICK_SECONDS: Final = 10.0  # for random search


@dataclass(frozen=True)
class Options:
    """How much is measured.

    Attributes:
        rounds: Rounds of the entrants.
        peers: Whether loadtune and random search are run.
        grid: Whether the best of a grid is looked for; else choices are held against siblings, hand and defaults alone.
        quick: Whether to rehearse only.
        again: Whether to take choices and grid from the results that are there, and measure the rounds anew.
        results: Where results are written.
    """

    rounds: int
    peers: bool
    grid: bool
    quick: bool
    again: bool
    results: Path


_started = time.monotonic()


def say(text: str) -> None:
    """Print a line with the time since the start."""
    seconds = int(time.monotonic() - _started)
    print(f"{seconds // 60:3}:{seconds % 60:02}  {text}", flush=True)


def run_sitting(workload: BenchWorkload, options: Options) -> WorkloadResult:
    """Measure one workload.

    Args:
        workload: What to measure.
        options: How much.

    Returns:
        Everything raw.

    Raises:
        subprocess.CalledProcessError: A run failed.
        DltuneError: The workload could not be probed.
    """
    date, started = datetime.now(UTC).isoformat(timespec="seconds"), time.monotonic()
    if options.again and (kept := read_results(options.results, (workload.name,), WorkloadResult)):
        cleared = [entrant.model_copy(update={"predictions": (), "runs": ()}) for entrant in kept[0].entrants]
        return kept[0].model_copy(update={"entrants": tuple(run_rounds(workload, cleared, options.rounds))})
    cpus = count_whole_cpus(read_machine().usable_cpus)
    tunings = list(run_tuners(workload, cpus, options))
    grid = screen(workload, [as_config(kwargs) for kwargs in list_grid(workload)]) if options.grid else []
    labels = gather_labels(workload, tunings, grid)
    entrants = screen_entrants(workload, labels, grid)
    entrants = run_rounds(workload, entrants, options.rounds)
    return WorkloadResult(
        workload=workload.name,
        date=date,
        cpus=cpus,
        torch=version("torch"),
        quick=options.quick,
        seconds=time.monotonic() - started,
        tunings=tuple(tunings),
        grid=tuple(grid),
        entrants=tuple(entrants),
    )


def run_tuners(workload: BenchWorkload, cpus: int, options: Options) -> Iterator[Tuning]:
    """Let everybody choose.

    Args:
        workload: What to choose for.
        cpus: CPUs that a hand would give as many workers as.
        options: Whether the peers are run, and how long.

    Yields:
        What each chose.
    """
    own = tune(workload, *(QUICK_OPTIONS if options.quick else ("--trials", "40")))
    _say_choice(own)
    yield own
    yield set_by_hand(workload, cpus)
    if options.peers:
        found = search_at_random(workload, QUICK_SECONDS if options.quick else own.seconds)
        _say_choice(found)
        yield found
        found = run_loadtune(workload)
        _say_choice(found)
        yield found


def _say_choice(tuning: Tuning) -> None:
    say(f"  {tuning.tuner:<9} {describe_config(tuning.config)}  in {tuning.seconds:.0f} s  ({tuning.note})")


def screen(
    workload: BenchWorkload, configs: Sequence[LoaderConfig], best_seconds: float | None = None
) -> list[Screened]:
    """Look at configurations by one short run each; what turns out hopeless is given up.

    Args:
        workload: What is trained on.
        configs: The configurations.
        best_seconds: The shortest run so far; None before there is one.

    Returns:
        What each lets expect, in the order measured: those with a middling number of workers first, so that a good one
        is known when the slow ones come.
    """
    found = []
    middle = sorted(config.dataloader.num_workers for config in configs)[len(configs) // 2] if configs else 0
    for config in sorted(configs, key=lambda config: abs(config.dataloader.num_workers - middle)):
        limit = None if best_seconds is None else max(LEAST_SCREEN_SECONDS, HOPELESS_FACTOR * best_seconds)
        run = train(workload, config, min(SCREEN_EPOCHS, workload.epochs), limit)
        if not run.given_up:
            best_seconds = min(best_seconds or sum(run.epoch_seconds), sum(run.epoch_seconds))
        found.append(Screened(config=config, run=run, samples_per_second=run.extrapolate(workload.epochs)))
        end = "  given up" if run.given_up else ""
        say(f"  grid      {describe_config(config)}  {found[-1].samples_per_second:,.0f}/s{end}")
    return found


def train(workload: BenchWorkload, config: LoaderConfig, epochs: int, most_seconds: float | None = None) -> Trained:
    """Train with a configuration in a fresh process, as plain PyTorch code would."""
    return measure(
        WholeRun(
            dataset=workload.dataset,
            loader_kwargs=config.loader_kwargs(),
            epochs=epochs,
            step=workload.step,
            step_seconds=workload.step_seconds,
            sharing_strategy=config.process.sharing_strategy,
            most_seconds=most_seconds,
        )
    )


def gather_labels(
    workload: BenchWorkload, tunings: Sequence[Tuning], grid: Sequence[Screened]
) -> dict[LoaderConfig, tuple[str, ...]]:
    """Name the configurations that deserve whole runs, and why.

    Args:
        workload: The workload.
        tunings: Who chose what.
        grid: The grid, screened.

    Returns:
        Labels by configuration, each configuration once.
    """
    ranked = sorted(grid, key=lambda seen: seen.samples_per_second, reverse=True)
    wanted: list[tuple[str, LoaderConfig]] = [(tuning.tuner, tuning.config) for tuning in tunings]
    wanted += [(f"grid {place}", seen.config) for place, seen in enumerate(ranked[:FINALISTS], start=1)]
    for tuning in tunings:
        if tuning.tuner == "dltune":
            early, last = tuning.best_after(EARLY_SECONDS), tuning.best_after(tuning.seconds)
            wanted += [(label, config) for label, config in (("early", early), ("search", last)) if config is not None]
            wanted += [("sibling", make_sibling(tuning.config))]
    wanted += [("spread", as_config(kwargs)) for kwargs in list_spread(workload)]
    if not grid:
        wanted.append(("defaults", as_config({"batch_size": workload.batch_size, "num_workers": 0})))
    return merge_labels(wanted)


def screen_entrants(
    workload: BenchWorkload, labels: dict[LoaderConfig, tuple[str, ...]], grid: Sequence[Screened]
) -> list[Entrant]:
    """Make the entrants, each with as many epochs as it can be given time for.

    Args:
        workload: The workload.
        labels: Why each configuration is there.
        grid: What is known of them; those outside the grid are screened now.

    Returns:
        Those that are not too slow.
    """
    shortest = min((sum(seen.run.epoch_seconds) for seen in grid if not seen.run.given_up), default=None)
    known = {seen.config: seen for seen in grid}
    known |= {seen.config: seen for seen in screen(workload, [c for c in labels if c not in known], shortest)}
    entrants = []
    samples = next(seen.run.samples / len(seen.run.epoch_seconds) for seen in known.values() if not seen.run.given_up)
    for config, why in labels.items():
        epochs = plan_epochs(workload.epochs, samples / known[config].samples_per_second)
        if epochs is None:
            say(f"  left out  {describe_config(config)}  {known[config].samples_per_second:,.0f}/s ({', '.join(why)})")
            continue
        entrants.append(Entrant(labels=why, config=config, epochs=epochs, screened=known[config].samples_per_second))
    return entrants


def plan_epochs(wanted: int, epoch_seconds: float) -> int | None:
    """Choose the length of a whole run.

    Args:
        wanted: Epochs it should have.
        epoch_seconds: Seconds that one is expected to take.

    Returns:
        Epochs; None when even the fewest take too long.
    """
    if FEWEST_EPOCHS * epoch_seconds > LONGEST_RUN_SECONDS:
        return None
    return min(wanted, max(FEWEST_EPOCHS, int(MOST_RUN_SECONDS / epoch_seconds)))


def run_rounds(workload: BenchWorkload, entrants: Sequence[Entrant], rounds: int) -> list[Entrant]:
    """Predict and train all entrants in turn, round by round.

    Args:
        workload: The workload.
        entrants: Who takes part.
        rounds: How often.

    Returns:
        The entrants with what was measured.
    """
    current = list(entrants)
    for number in range(rounds):
        shift = number * len(current) // rounds
        for place in [*range(shift, len(current)), *range(shift)]:
            current[place] = _measure_both(workload, current[place], trial_first=(number + place) % 2 == 0)
            entrant = current[place]
            said, true = entrant.predictions[-1], entrant.rates[-1]
            words = (
                said.failure or f"predicted {said.samples_per_second:,.0f}  {said.samples_per_second / true - 1:+.1%}"
            )
            head = f"round {number + 1}/{rounds}"
            say(f"  {head} {describe_config(entrant.config)}  {true:,.0f}/s  {words}  ({', '.join(entrant.labels)})")
    return current


def _measure_both(workload: BenchWorkload, entrant: Entrant, *, trial_first: bool) -> Entrant:
    early = predict(workload, entrant.config, entrant.epochs) if trial_first else None
    run = train(workload, entrant.config, entrant.epochs)
    prediction = early or predict(workload, entrant.config, entrant.epochs)
    return entrant.model_copy(update={"predictions": (*entrant.predictions, prediction), "runs": (*entrant.runs, run)})


def shorten(workload: BenchWorkload) -> BenchWorkload:
    """Make a workload that is measured in a minute, for a rehearsal."""
    middle = workload.workers[: len(workload.workers) // 2 + 1][-2:]
    changes = {"epochs": 2, "workers": (0, *middle), "prefetch": (2,), "unordered": (), "restarting": ()}
    return workload.model_copy(update=changes)


def parse_arguments(arguments: Sequence[str] | None = None) -> tuple[Options, list[BenchWorkload]]:
    """Read the command line.

    Args:
        arguments: What was typed; None takes the process's own.

    Returns:
        How much is measured, and on what.
    """
    names = [workload.name for workload in WORKLOADS]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="NAME", help=", ".join(names))
    parser.add_argument("--results", type=Path, help=f"folder of the results ({RESULTS})")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of the entrants (3)")
    parser.add_argument("--skip-peers", action="store_true", help="run neither loadtune nor random search")
    parser.add_argument("--skip-grid", action="store_true", help="hold choices against siblings and hands alone")
    parser.add_argument("--quick", action="store_true", help="rehearse: one round of two epochs, kept elsewhere")
    parser.add_argument("--again", action="store_true", help="measure only the rounds anew, of choices kept earlier")
    given = parser.parse_args(arguments)
    if given.rounds < 1:
        parser.error("--rounds: at least 1")
    results = given.results or (Path(tempfile.gettempdir()) / "dltune-bench-quick" if given.quick else RESULTS)
    rounds = 1 if given.quick else given.rounds
    options = Options(rounds, not given.skip_peers, not given.skip_grid, given.quick, given.again, results)
    chosen = [workload for workload in WORKLOADS if workload.name in given.only]
    return options, [shorten(workload) if given.quick else workload for workload in chosen]


def main() -> None:
    """Measure, keep what was measured, print the tables."""
    options, workloads = parse_arguments()
    failed = []
    for workload in workloads:
        say(workload.name)
        try:
            result = run_sitting(workload, options)
        except subprocess.CalledProcessError as error:
            say(f"  failed: {' '.join(error.cmd)[:200]}\n{error.stderr}")
            failed.append(workload.name)
        except DltuneError as error:
            say(f"  failed: {error}")
            failed.append(workload.name)
        else:
            save_result(result, options.results)
            say(f"  done in {result.seconds:.0f} s")
    report.publish(options.results)
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()

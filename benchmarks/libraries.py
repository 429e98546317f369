"""Compares predicted speedups of other libraries' loaders with those of whole training runs.

dltune tunes each loader as its user would. Then the unchanged and the tuned loader train whole runs with the library's
own class, alternating, each run in a fresh process. If dltune recommends no change, the best of the other candidates of
the validation trains instead: the whole runs show whether no change was right.

    python -m benchmarks.libraries [--only NAME ...] [--rounds 3] [--results FILE]
"""

from __future__ import annotations

import argparse
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import NormalDist, fmean, median, variance
from typing import Final, NamedTuple

from pydantic import TypeAdapter

from autotune import TunedProfile
from autotune.config import FrozenModel, Interval, LoaderConfig
from autotune.profiles.store import save_profile
from autotune.protocol.statistics import blend_spread
from autotune.settings import describe_config
from benchmarks.library_training import STEP_SECONDS
from benchmarks.tables import format_table, say
from benchmarks.training import make_environment

RESULTS: Final = Path("benchmarks/results/libraries.json")
TOLERANCE: Final = 0.08  # of a prediction
MEDIAN_ERROR: Final = 0.67  # standard error of a median of three normal values, in standard deviations of one
PRIOR_WEIGHT: Final = 2.0  # degrees of freedom: as many as three pairs have
COMPARED: Final = "compared.json"  # tuned file with the configuration that trains whole runs


class Library(NamedTuple):
    """A loader or dataset of another library.

    Attributes:
        function: Module and name below `benchmarks.workloads.libraries`.
        option: How dltune is given it.
        package: The library.
        gives_dataset: Whether the function returns a dataset, for a DataLoader of torch.
        has_batch_size: Whether dltune can set the batch size; a loader prepared by accelerate has a batch sampler.
        epochs: Length of the predicted run and of the whole runs: a few seconds.
    """

    function: str
    option: str
    package: str
    gives_dataset: bool = False
    has_batch_size: bool = True
    epochs: int = 2

    @property
    def name(self) -> str:
        """Name of the function."""
        return self.function.partition(":")[2]

    @property
    def factory(self) -> str:
        """Import string of the function."""
        return f"benchmarks.workloads.libraries.{self.function}"


LIBRARIES: Final = (
    Library("images:timm_multi_epochs", "--dataset", "timm"),
    Library("images:timm_dataset", "--dataset", "timm", gives_dataset=True),
    Library("images:timm_created", "--loader", "timm"),
    Library("images:torchvision_mixup", "--dataset", "torchvision"),
    Library("images:albumentations_opencv", "--dataset", "albumentations", gives_dataset=True),
    Library("images:ultralytics_infinite", "--dataset", "ultralytics"),
    Library("images:ultralytics_built", "--loader", "ultralytics"),
    Library("volumes:monai_threads", "--dataset", "monai"),
    Library("volumes:monai_cached", "--dataset", "monai"),
    Library("hugging_face:hf_transformed", "--dataset", "datasets", gives_dataset=True),
    Library("hugging_face:hf_iterable", "--dataset", "datasets", gives_dataset=True),
    Library("hugging_face:hf_streaming", "--dataset", "datasets", gives_dataset=True),
    Library("trainers:trainer_function", "--loader", "transformers"),
    Library("trainers:trainer_loader", "--dataset", "transformers", has_batch_size=False),
    Library("trainers:accelerate_prepared", "--loader", "accelerate"),
    Library("trainers:lightning_data_module", "--dataset", "lightning"),
    Library("trainers:lightning_combined", "--loader", "lightning"),
    Library("streams:litdata_streaming", "--dataset", "litdata", epochs=4),
    Library("streams:mosaic_streaming", "--dataset", "mosaicml-streaming"),
    Library("streams:mosaic_function", "--loader", "mosaicml-streaming"),
    Library("streams:webdataset_shards", "--dataset", "webdataset", gives_dataset=True),
    Library("streams:webdataset_resampled", "--dataset", "webdataset", gives_dataset=True),
    Library("streams:webdataset_loader", "--loader", "webdataset"),
    Library("graphs:graphs", "--dataset", "torch-geometric"),
    Library("arrays:h5py_images", "--dataset", "h5py", gives_dataset=True, epochs=4),
    Library("arrays:zarr_images", "--dataset", "zarr", gives_dataset=True, epochs=4),
    Library("arrays:memory_mapped_tokens", "--dataset", "numpy", gives_dataset=True, epochs=4),
    Library("nodes:stateful", "--dataset", "torchdata"),
    Library("nodes:torchdata_nodes", "--loader", "torchdata"),
    Library("nodes:hand_written", "--loader", "torch"),
)


class LibraryResult(FrozenModel):
    """Prediction and whole runs of one loader, in samples per second.

    Attributes:
        name: Name of the case.
        option: How dltune is given it.
        package: The library, with its version.
        measured: Class or function that ran in the trials; None for a plain DataLoader.
        choice: The recommended configuration.
        decision: `faster` or `no_change`.
        compared: The configuration that trained whole runs.
        speedup: Its predicted speedup; None without another candidate.
        speedup_ci95: The 95% interval of that.
        tuning_seconds: Duration of the tuning run.
        baseline_runs: Whole runs of the unchanged loader.
        tuned_runs: Whole runs with the compared configuration.
    """

    name: str
    option: str
    package: str
    measured: str | None
    choice: str
    decision: str
    compared: str
    speedup: float | None
    speedup_ci95: Interval | None = None
    tuning_seconds: float
    baseline_runs: tuple[float, ...]
    tuned_runs: tuple[float, ...]

    @property
    def true_speedup(self) -> float:
        """Speedup of whole runs, median of pairs."""
        return median(tuned / was for was, tuned in zip(self.baseline_runs, self.tuned_runs, strict=True))

    @property
    def deviation(self) -> float | None:
        """The predicted speedup over that of whole runs, minus 1; None without a prediction."""
        return None if self.speedup is None else self.speedup / self.true_speedup - 1


def measure(library: Library, rounds: int) -> LibraryResult:
    """Tune a loader, and train whole runs with it, unchanged and tuned, alternating."""
    with tempfile.TemporaryDirectory() as folder:
        started = time.monotonic()
        profile = _tune(library, folder)
        seconds = time.monotonic() - started
        compared, speedup = find_compared(profile)
        save_profile(Path(folder) / COMPARED, profile.model_copy(update={"config": compared}))
        say(f"{library.name}: {profile.result.decision}, {seconds:.0f} s; compared with {describe_config(compared)}")
        was: list[float] = []
        tuned: list[float] = []
        for number in range(rounds):
            for runs, file in ((was, None), (tuned, COMPARED))[:: -1 if number % 2 else 1]:
                runs.append(_train(library, folder, file))
            say(f"  round {number + 1}: {was[-1]:,.0f} -> {tuned[-1]:,.0f} samples/s")
    result = profile.result
    return LibraryResult(
        name=library.name,
        option=library.option,
        package=f"{library.package} {version(library.package)}",
        measured=profile.workload.loader_class,
        choice=describe_config(profile.config),
        decision=result.decision,
        compared=describe_config(compared),
        speedup=speedup,
        speedup_ci95=result.speedup_ci95 if result.decision == "faster" else None,
        tuning_seconds=seconds,
        baseline_runs=tuple(was),
        tuned_runs=tuple(tuned),
    )


def find_compared(profile: TunedProfile) -> tuple[LoaderConfig, float | None]:
    """Return what whole runs compare with the unchanged loader, and its predicted speedup."""
    result = profile.result
    rates = {one.config: one.runs for one in result.candidates}
    others = {config: runs for config, runs in rates.items() if config != profile.config and runs}
    if result.decision == "faster" or not others:
        return profile.config, result.speedup if result.decision == "faster" else None
    best = max(others, key=lambda config: median(others[config].values()))
    own = rates[profile.config]
    return best, median(rate / own[number] for number, rate in others[best].items() if number in own)


def _tune(library: Library, folder: str) -> TunedProfile:
    command = [sys.executable, "-m", "autotune", library.option, library.factory]
    command += ["--step-time", f"{STEP_SECONDS * 1000:g}ms", "--epochs", str(library.epochs)]
    command += ["--batch-size", "32"] if library.has_batch_size else []
    return TunedProfile.model_validate_json(_run([*command, "--json"], folder))


def _train(library: Library, folder: str, file: str | None) -> float:
    command = [sys.executable, "-m", "benchmarks.library_training", library.factory, *([] if file is None else [file])]
    command += ["--epochs", str(library.epochs), *["--dataset"] * library.gives_dataset]
    return float(_run(command, folder).split()[-1])


def _run(command: Sequence[str], folder: str) -> str:
    environment = make_environment() | {"PYTHONWARNINGS": "ignore"}
    finished = subprocess.run(command, check=False, capture_output=True, text=True, cwd=folder, env=environment)
    if finished.returncode:
        raise RuntimeError(f"{' '.join(command)}\n{finished.stderr[-2000:]}")
    return finished.stdout


def expect_within(results: Sequence[LibraryResult], tolerance: float) -> float:
    """Return how many predictions would be within the tolerance if each was the true speedup.

    The measured speedup is a median of pairs, which scatter; that of all cases is the prior for each.
    """
    logs = [
        [math.log(tuned / was) for was, tuned in zip(one.baseline_runs, one.tuned_runs, strict=True)] for one in results
    ]
    usual = math.sqrt(fmean(map(variance, logs)))
    errors = (MEDIAN_ERROR * blend_spread(one, usual, PRIOR_WEIGHT)[0] for one in logs)
    return sum(2 * NormalDist(0.0, error).cdf(math.log1p(tolerance)) - 1 for error in errors)


def format_results(results: Sequence[LibraryResult]) -> str:
    """Return the table of all loaders, and how many predictions are right."""
    head = ("library", "case", "given by", "measured", "choice", "predicted", "whole runs", "error")
    table = format_table(head, [_format_row(result) for result in results])
    compared = [one for one in results if one.deviation is not None and len(one.tuned_runs) > 1]
    if not compared:
        return table
    within = sum(abs(one.deviation or 0.0) <= TOLERANCE for one in compared)
    seconds, perfect = [one.tuning_seconds for one in results], expect_within(compared, TOLERANCE)
    return (
        f"{table}\n\n{within} of {len(compared)} predictions within {TOLERANCE:.0%} of whole runs; of perfect ones, "
        f"{perfect:.1f} at this scatter of the runs. Tuning: median {median(seconds):.0f} s, longest "
        f"{max(seconds):.0f} s."
    )


def _format_row(result: LibraryResult) -> tuple[str, ...]:
    predicted = "-" if result.speedup is None else f"{result.speedup:.2f}x"
    if result.speedup_ci95 is not None:
        predicted += " [{:.2f}-{:.2f}]".format(*result.speedup_ci95)
    if result.decision == "no_change":
        predicted = "no change" if result.speedup is None else f"no change; {result.compared}: {predicted}"
    measured = "DataLoader" if result.measured is None else result.measured.rpartition(":")[2]
    error = "" if result.deviation is None else f"{result.deviation:+.1%}"
    whole = f"{result.true_speedup:.2f}x"
    return result.package, result.name, result.option, measured, result.choice, predicted, whole, error


def main() -> None:
    """Measure what is installed, store each result, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [library.name for library in LIBRARIES]
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="NAME", help=", ".join(names))
    parser.add_argument("--rounds", type=int, default=3, help="pairs of whole runs (3)")
    parser.add_argument("--results", type=Path, default=RESULTS, help=f"file of the results ({RESULTS})")
    given = parser.parse_args()
    stored = TypeAdapter(tuple[LibraryResult, ...])
    found: dict[str, LibraryResult] = {}
    if given.results.exists():
        found = {one.name: one for one in stored.validate_json(given.results.read_bytes())}
    given.results.parent.mkdir(parents=True, exist_ok=True)
    for library in (one for one in LIBRARIES if one.name in given.only):
        try:
            found[library.name] = measure(library, given.rounds)
        except (PackageNotFoundError, RuntimeError) as error:
            say(f"{library.name} failed: {error}")
        given.results.write_bytes(stored.dump_json(tuple(found.values()), indent=1))
    print(format_results(list(found.values())))


if __name__ == "__main__":
    main()

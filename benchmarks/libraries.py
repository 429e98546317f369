"""Is a loader of another library measured as it trains? Speed-ups that dltune predicts, beside those of whole runs.

Each loader is tuned as its user would; then whole training runs with it as it was and as tuned are made in turn, each
in a fresh process, with the library's own class. Where the answer is to keep it, the best of the others that were
confirmed takes the place of the tuned one: whole runs tell whether keeping was right.

    python -m benchmarks.libraries [--only NAME ...] [--rounds 3] [--results FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple

from autotune import TunedProfile
from autotune.config import FrozenModel, Interval, LoaderConfig
from autotune.profiles.schema import CandidateResult
from autotune.profiles.store import save_profile
from autotune.settings import describe_config
from benchmarks.tables import say
from benchmarks.training.environment import make_environment
from benchmarks.training.own_loop import STEP_SECONDS

RESULTS: Final = Path("benchmarks/results/libraries.json")
COMPARED: Final = "compared.json"  # the tuned file with what whole runs are made of in it


class Library(NamedTuple):
    """A loader or a dataset, how it is given to dltune, and the package that it is of."""

    name: str
    option: str
    package: str
    gives_dataset: bool = False  # which a DataLoader of torch loads
    epochs: int = 2  # of the training run that is predicted, and made; some seconds in all


LIBRARIES: Final = (
    Library("timm_multi_epochs", "--dataset", "timm"),
    Library("timm_dataset", "--dataset", "timm", gives_dataset=True),
    Library("timm_created", "--loader", "timm"),
    Library("torchvision_mixup", "--dataset", "torchvision"),
    Library("albumentations_opencv", "--dataset", "albumentations", gives_dataset=True),
    Library("ultralytics_infinite", "--dataset", "ultralytics"),
    Library("ultralytics_built", "--loader", "ultralytics"),
    Library("monai_threads", "--dataset", "monai"),
    Library("monai_cached", "--dataset", "monai"),
    Library("hf_transformed", "--dataset", "datasets", gives_dataset=True),
    Library("hf_torch", "--dataset", "datasets", gives_dataset=True),
    Library("hf_iterable", "--dataset", "datasets", gives_dataset=True),
    Library("hf_streaming", "--dataset", "datasets", gives_dataset=True),
    Library("trainer_function", "--loader", "transformers"),
    Library("accelerate_prepared", "--loader", "accelerate"),
    Library("lightning_data_module", "--dataset", "lightning"),
    Library("lightning_module", "--dataset", "lightning"),
    Library("lightning_member", "--dataset", "lightning"),
    Library("lightning_combined", "--loader", "lightning"),
    Library("litdata_streaming", "--dataset", "litdata", epochs=4),
    Library("mosaic_streaming", "--dataset", "mosaicml-streaming"),
    Library("mosaic_function", "--loader", "mosaicml-streaming"),
    Library("webdataset_shards", "--dataset", "webdataset", gives_dataset=True),
    Library("webdataset_resampled", "--dataset", "webdataset", gives_dataset=True),
    Library("webdataset_loader", "--loader", "webdataset"),
    Library("graphs", "--dataset", "torch-geometric"),
    Library("neighbours", "--dataset", "torch-geometric"),
    Library("h5py_images", "--dataset", "h5py", gives_dataset=True, epochs=4),
    Library("zarr_images", "--dataset", "zarr", gives_dataset=True, epochs=4),
    Library("memory_mapped_tokens", "--dataset", "numpy", gives_dataset=True, epochs=4),
    Library("stateful", "--dataset", "torchdata"),
    Library("torchdata_nodes", "--loader", "torchdata"),
    Library("hand_written", "--loader", "torch"),
)


class LibraryResult(FrozenModel):
    """What was predicted for a loader, and what whole runs gave, in samples per second."""

    name: str
    option: str
    package: str  # with its version
    measured: str | None  # the class or function that ran in the trials
    choice: str
    verdict: str
    predicted: float
    predicted_baseline: float | None
    compared: str  # the choice, or the best of the others where the answer is to keep the loader as it is
    speedup: float | None  # that of `compared`; None where there was no other
    speedup_ci95: Interval | None = None
    candidates: tuple[CandidateResult, ...] = ()  # what the prediction rests on
    tuning_seconds: float
    epochs: int  # of each run
    baseline_runs: tuple[float, ...]
    tuned_runs: tuple[float, ...]

    @property
    def true_speedup(self) -> float:
        """Speed-up of whole runs, median of pairs."""
        return median(tuned / was for was, tuned in zip(self.baseline_runs, self.tuned_runs, strict=True))

    @property
    def deviation(self) -> float | None:
        """The predicted speed-up over that of whole runs, less 1; None where none was predicted."""
        return None if self.speedup is None else self.speedup / self.true_speedup - 1


def measure(library: Library, rounds: int) -> LibraryResult:
    """Tune a loader, and train with it as it was and as tuned, in turn."""
    with tempfile.TemporaryDirectory() as folder:
        started = time.monotonic()
        profile = _tune(library, folder)
        seconds = time.monotonic() - started
        compared, speedup = find_compared(profile)
        save_profile(Path(folder) / COMPARED, profile.model_copy(update={"config": compared}))
        say(f"{library.name}: {profile.result.verdict}, {seconds:.0f} s; compared with {describe_config(compared)}")
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
        verdict=result.verdict,
        predicted=result.samples_per_second,
        predicted_baseline=None if result.baseline is None else result.baseline.samples_per_second,
        compared=describe_config(compared),
        speedup=speedup,
        speedup_ci95=result.speedup_ci95 if result.verdict == "faster" else None,
        candidates=result.candidates,
        tuning_seconds=seconds,
        epochs=library.epochs,
        baseline_runs=tuple(was),
        tuned_runs=tuple(tuned),
    )


def find_compared(profile: TunedProfile) -> tuple[LoaderConfig, float | None]:
    """Return what whole runs compare with the unchanged loader, and its predicted speedup."""
    result = profile.result
    rates = {one.config: {run.number: run.samples_per_second for run in one.runs} for one in result.candidates}
    others = {config: runs for config, runs in rates.items() if config != profile.config and runs}
    if result.verdict == "faster" or not others:
        return profile.config, result.speedup if result.verdict == "faster" else None
    best = max(others, key=lambda config: median(others[config].values()))
    own = rates[profile.config]
    return best, median(rate / own[number] for number, rate in others[best].items() if number in own)


def _tune(library: Library, folder: str) -> TunedProfile:
    command = [sys.executable, "-m", "autotune", library.option, f"benchmarks.workloads.libraries:{library.name}"]
    command += ["--step-time", f"{STEP_SECONDS * 1000:g}ms", "--batch-size", "32", "--epochs", str(library.epochs)]
    return TunedProfile.model_validate_json(_run([*command, "--json"], folder))


def _train(library: Library, folder: str, file: str | None) -> float:
    command = [sys.executable, "-m", "benchmarks.training.own_loop", library.name, *([] if file is None else [file])]
    command += ["--epochs", str(library.epochs), *["--dataset"] * library.gives_dataset]
    return float(_run(command, folder).split()[-1])


def _run(command: Sequence[str], folder: str) -> str:
    environment = make_environment() | {"PYTHONWARNINGS": "ignore"}
    finished = subprocess.run(command, check=False, capture_output=True, text=True, cwd=folder, env=environment)
    if finished.returncode:
        raise RuntimeError(f"{' '.join(command)}\n{finished.stderr[-2000:]}")
    return finished.stdout


def describe(results: Sequence[LibraryResult]) -> list[str]:
    """Write the results as a table in Markdown."""
    rows = [
        "| of | case | given by | measured | choice | predicted | whole runs | off |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for result in results:
        off = "" if result.deviation is None else f"{result.deviation:+.1%}"
        measured = (
            "DataLoader" if result.measured is None else result.measured.replace("benchmarks.workloads.libraries:", "")
        )
        rows.append(
            f"| {result.package} | `{result.name}` | `{result.option}` | `{measured}` | {result.choice} | "
            f"{_write_prediction(result)} | {result.true_speedup:.2f}x | {off} |"
        )
    return rows


def _write_prediction(result: LibraryResult) -> str:
    if result.speedup is None:
        return "no change"
    if result.verdict == "no_change":
        return f"no change; {result.compared}: {result.speedup:.2f}x"
    return f"{result.speedup:.2f}x{_write_interval(result)}"


def _write_interval(result: LibraryResult) -> str:
    return "" if result.speedup_ci95 is None else " [{:.2f}-{:.2f}]".format(*result.speedup_ci95)


def main() -> None:
    """Measure what is installed, keep it, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [library.name for library in LIBRARIES]
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="NAME", help=", ".join(names))
    parser.add_argument("--rounds", type=int, default=3, help="pairs of whole runs (3)")
    parser.add_argument("--results", type=Path, default=RESULTS, help=f"file of the results ({RESULTS})")
    given = parser.parse_args()
    kept = json.loads(given.results.read_text()) if given.results.exists() else []
    found = {one["name"]: LibraryResult.model_validate(one) for one in kept}
    for library in LIBRARIES:
        if library.name not in given.only:
            continue
        try:
            found[library.name] = measure(library, given.rounds)
        except (PackageNotFoundError, RuntimeError) as error:
            say(f"{library.name} failed: {error}")
        given.results.write_text(json.dumps([one.model_dump() for one in found.values()], indent=1) + os.linesep)
    print("\n".join(describe(list(found.values()))))


if __name__ == "__main__":
    main()

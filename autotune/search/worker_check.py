"""Tells bad luck from a failure of the user's code, and rules out what cannot work.

A resource that ran out says something about one configuration. Code that raises or dies may have had bad luck: it is
looked at again. If it fails again, or hangs, with workers, the fewest workers are tried; if they fail as well, it is
run without any, for as many samples as it takes to tell whether workers are to blame or the data (`failure_rates`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from autotune.config import DataLoaderSettings, LoaderConfig
from autotune.errors import WorkloadError
from autotune.request import WorkloadRequest
from autotune.search.failure_rates import Cause, FailureRates, name_cause
from autotune.trial.measurement import CODE_FAILURES, TrialKind, TrialResult

FLAKY: Final[tuple[TrialKind, ...]] = ("workload_failed", "crashed", "device_failed")  # a hang costs too much to repeat
LOOKS_WITHOUT: Final = 4  # at most, in a run: trials without workers that tell whose failure it is
ADVICE: Final[dict[TrialKind, str]] = {
    "workload_failed": "Whatever the dataset opens or draws once (files, connections, random state) must be made anew "
    "in each worker, in __getitem__ or worker_init_fn; with spawn, everything it holds must be picklable.",
    "crashed": "Native code that does not survive a fork is the usual cause: try --start-method spawn.",
    "stalled": "A lock held across a fork, threads of OpenMP, or a batch that cannot be pickled are the usual causes: "
    "try --start-method spawn, and batches of tensors.",
}

TryConfig = Callable[[LoaderConfig], TrialResult]


class WorkerCheck:
    """Whether workers can work at all for this workload, and whether the data itself fails."""

    def __init__(
        self, candidates: Sequence[LoaderConfig], try_config: TryConfig, *, is_suspected: bool = False
    ) -> None:
        self.reason: str | None = None
        self.flaw: Cause | None = None
        self.rates = FailureRates()
        self._try = try_config
        self._is_suspected = is_suspected
        busy = [config for config in candidates if config.dataloader.num_workers]
        self._fewest = min(busy, key=_measure_size, default=None)
        self._without = _find_without(candidates, self._fewest)
        self._looks_left = LOOKS_WITHOUT
        self._failure: TrialResult | None = None  # with the fewest workers
        self._can_work = False
        self._proven: set[Cause] = set()
        self._passing: dict[Cause, None] = {}

    def excludes(self, config: LoaderConfig) -> bool:
        """Tell whether a configuration has been ruled out."""
        return self.reason is not None and config.dataloader.num_workers > 0

    @property
    def findings(self) -> tuple[str, ...]:
        """Sentences on what failed, for the user to read."""
        passing = dict.fromkeys((*self._passing, *(() if self.flaw is None else (self.flaw,))))
        sentences = (_capitalize(self.rates.describe(cause)) for cause in passing)
        warnings = (f"{sentence}. A training run ends where that happens." for sentence in sentences)
        return (*(() if self.reason is None else (self.reason,)), *warnings)

    def order(self, configs: Iterable[LoaderConfig]) -> list[LoaderConfig]:
        """Put the fewest workers first where the probe made workers suspect: one bad round proves nothing."""
        if not self._is_suspected or self._fewest is None:
            return list(configs)
        return sorted(
            dict.fromkeys([*configs, self._fewest]),
            key=lambda config: (config.dataloader.num_workers > 0, config != self._fewest),
        )

    def note(self, result: TrialResult) -> None:
        """Take in a trial, whatever became of it."""
        self.rates.note(result)
        self._can_work |= result.config == self._fewest and result.kind == "completed"

    def is_flaky(self, result: TrialResult) -> bool:
        """Tell whether a failure deserves a second look: one that has not repeated itself yet."""
        return result.kind in FLAKY and name_cause(result) not in self._proven

    def note_retry(self, first: TrialResult, second: TrialResult) -> None:
        """Take in what a second look showed."""
        if second.kind == "completed":
            self._passing[name_cause(first)] = None
        elif name_cause(first) == name_cause(second) != self.flaw:  # which deserves a second look each time
            self._proven.add(name_cause(first))

    def test_workers(self, result: TrialResult) -> bool:
        """Find out whether a failure with workers is about them, about the data, or about one configuration.

        Returns:
            Whether workers, or the data, have now been found to fail.
        """
        if self.reason is not None or self.flaw is not None or not _is_about_workers(result):
            return False
        if not self._can_work and not self._is_data_flawed():
            self._try_fewest(result)
            self._try_without()
        if self._failure is not None and self.rates.blame() == "workers":
            self.reason = _explain(self._failure)
        elif self._is_data_flawed():
            self.flaw = self.rates.find_shared()
            self._proven.discard(self.flaw)
        return self.reason is not None or self.flaw is not None

    def explain_flaw(self, flaw: Cause) -> WorkloadError:
        """Say what of the dataset itself fails."""
        return WorkloadError(
            f"The dataset itself fails: {self.rates.describe(flaw)}. A training run would meet it as well: mend it, or "
            "have the dataset replace such samples.",
            self.rates.find_example(flaw).details,
        )

    def raise_on_hopeless(self, result: TrialResult, workload: WorkloadRequest) -> None:
        """End the run by WorkloadError when what fails again needs no workers."""
        about_workers = result.config.dataloader.num_workers and not result.in_step
        if about_workers or result.kind not in ("workload_failed", "device_failed"):
            return
        who = "Training" if result.kind == "device_failed" else "The dataset"
        if result.in_step:
            who = f"The training step ({workload.describe_step()})"
        where = "" if result.config.dataloader.num_workers else " even without workers"
        seen = self.rates.count(name_cause(result))
        raise WorkloadError(f"{who} fails{where}: it {result.message.rstrip('.')}. Seen in {seen}.", result.details)

    def _is_data_flawed(self) -> bool:
        """Tell whether the data is to blame, and not the size of batches at which it fails."""
        if self.rates.blame() != "data":
            return False
        return self._failure is not None or self.rates.comes_and_goes(self.rates.find_shared())

    def _try_fewest(self, result: TrialResult) -> None:
        if self._failure is not None or self._fewest is None:
            return
        fewest = result if result.config == self._fewest else self._look(self._fewest)
        if fewest.kind in CODE_FAILURES:
            self._failure = fewest
        else:
            self._can_work = True

    def _try_without(self) -> None:
        while self._failure is not None and self._looks_left and self.rates.blame() is None:
            self._looks_left -= 1
            self._look(self._without)

    def _look(self, config: LoaderConfig) -> TrialResult:
        result = self._try(config)
        self.note(result)
        return result


def _is_about_workers(result: TrialResult) -> bool:
    return result.kind in CODE_FAILURES and bool(result.config.dataloader.num_workers) and not result.in_step


def _explain(failure: TrialResult) -> str:
    happened = failure.message.partition(". ")[0].rstrip(".")  # what follows is advice on one trial
    return (
        f"Workers are ruled out: without them the dataset works, but already with the fewest it {happened}. "
        f"{ADVICE[failure.kind]}"
    )


def _find_without(candidates: Sequence[LoaderConfig], fewest: LoaderConfig | None) -> LoaderConfig:
    """Choose what is run without workers: a candidate where there is one, at the batch size of the fewest workers."""
    size = None if fewest is None else fewest.dataloader.batch_size
    idle = [config for config in candidates if not config.dataloader.num_workers]
    made = LoaderConfig(dataloader=DataLoaderSettings(batch_size=size), knobs={} if fewest is None else fewest.knobs)
    return min(idle, key=lambda config: abs((config.dataloader.batch_size or 0) - (size or 0)), default=made)


def _measure_size(config: LoaderConfig) -> tuple[int, int, int]:
    loader = config.dataloader
    return loader.num_workers, loader.prefetch_factor or 0, loader.batch_size or 0


def _capitalize(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]

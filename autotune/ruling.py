"""Tells bad luck from a failure of the user's code, and rules out what cannot work.

A resource that ran out says something about one configuration. Code that raises, dies or hangs in workers, but not in
the training process, says something about workers: one of them is tried, and if it fails as well they all would.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from autotune.messages import TrialKind, TrialResult
from autotune.schema import LoaderConfig

CODE_FAILURES: Final[tuple[TrialKind, ...]] = ("workload_failed", "crashed", "stalled")
FLAKY: Final[tuple[TrialKind, ...]] = (
    "workload_failed",
    "crashed",
    "device_failed",
)  # a hang costs too much to be looked at twice
ADVICE: Final[dict[TrialKind, str]] = {
    "workload_failed": "Whatever the dataset opens or draws once (files, connections, random state) must be made anew "
    "in each worker, in __getitem__ or worker_init_fn; with spawn, everything it holds must be picklable.",
    "crashed": "Native code that does not survive a fork is the usual cause: return a Workload with "
    "multiprocessing_context='spawn'.",
    "stalled": "A lock held across a fork, threads of OpenMP, or a batch that cannot be pickled are the usual causes: "
    "return a Workload with multiprocessing_context='spawn', and batches of tensors.",
}

TryConfig = Callable[[LoaderConfig], TrialResult]


class WorkerRuling:
    """Whether workers can work at all for this workload.

    Args:
        candidates: The configurations of the search.
        try_config: Measures one.
        failure: How workers failed in the probe; None if they did not.
    """

    def __init__(self, candidates: Sequence[LoaderConfig], try_config: TryConfig, failure: str | None = None) -> None:
        self.reason: str | None = None
        self._try = try_config
        busy = [config for config in candidates if config.dataloader.num_workers]
        self._fewest = min(busy, key=_measure_size, default=None)
        self._proven: set[TrialKind] = set()
        self._is_judged = False
        if failure is not None:
            self._rule_out("stalled", failure)

    def applies_to(self, config: LoaderConfig) -> bool:
        """Tell whether a configuration has been ruled out."""
        return self.reason is not None and config.dataloader.num_workers > 0

    def may_be_luck(self, result: TrialResult) -> bool:
        """Tell whether a failure deserves a second look: one of its kind that has not repeated itself yet."""
        return result.kind in FLAKY and bool(result.config.dataloader.num_workers) and result.kind not in self._proven

    def note_repeated(self, first: TrialResult, second: TrialResult) -> None:
        """Take in what a second look showed."""
        if first.kind == second.kind:
            self._proven.add(first.kind)

    def judge(self, result: TrialResult) -> None:
        """Rule workers out if the smallest configuration with one fails like this one.

        Args:
            result: A trial.
        """
        workers = result.config.dataloader.num_workers
        if self._is_judged or not workers or result.kind not in CODE_FAILURES or self._fewest is None:
            return
        self._is_judged = True
        fewest = result if result.config == self._fewest else self._try(self._fewest)
        if fewest.kind in CODE_FAILURES:
            self._rule_out(fewest.kind, fewest.message)

    def _rule_out(self, kind: TrialKind, message: str) -> None:
        self._is_judged = True
        happened = message.partition(". ")[0].rstrip(".")  # what follows is advice on one trial
        self.reason = (
            f"Workers are ruled out: without them the dataset works, but already with the fewest it {happened}. "
            f"{ADVICE[kind]}"
        )


def _measure_size(config: LoaderConfig) -> tuple[int, int, int]:
    loader = config.dataloader
    return loader.num_workers, loader.prefetch_factor or 0, loader.batch_size or 0

"""When a search ends: when it may not go on, or when nothing more is to be expected of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from autotune.config import LoaderConfig
from autotune.search.knowledge import SearchKnowledge
from autotune.search.plan import Plan
from autotune.search.trial_record import IMPROVEMENT_RATIO, trials_since_improvement

NEAR_CEILING_RATIO: Final = 0.98  # of the step's bound; nothing is left to gain above it
MIN_EXPECTED_IMPROVEMENT: Final = 0.015  # expected from the most promising configuration; below it the search ends
MIN_TRIALS: Final = 6  # measured before expectations may end the search: the first few teach the model its own error
PATIENCE_TRIALS: Final = 4  # without improvement, after which the expectations have been wrong often enough
SAMPLER_PATIENCE_TRIALS: Final = 10  # the same for Optuna's samplers, which know nothing but the trials
WARM_PATIENCE_TRIALS: Final = 2  # the same for a search that starts from an earlier answer
NON_ADAPTIVE_SAMPLERS: Final = ("random", "grid")  # samplers that are chosen to look at everything; they run all trials
MAX_REPEATS: Final = 40  # proposals in a row that were all measured before


class StopCriteria:
    """What ends a search: it may not go on, or all that is tried first is measured and nothing promises more."""

    def __init__(
        self,
        plan: Plan,
        knowledge: SearchKnowledge,
        first: Sequence[LoaderConfig],
        has_time: Callable[[int], bool],
        *,
        is_warm: bool,
    ) -> None:
        self._plan = plan
        self._knowledge = knowledge
        self._first = first
        self._has_time = has_time
        self.min_trials = len(first) if is_warm else MIN_TRIALS
        usual = PATIENCE_TRIALS if plan.request.sampler == "model" else SAMPLER_PATIENCE_TRIALS
        self._patience = WARM_PATIENCE_TRIALS if is_warm else usual

    def find_limit(self, repeats: int) -> str | None:
        """Say why the search may not, or need not, go on, whatever is expected; None while it may."""
        trials, done = self._plan.request.trials, len(self._knowledge.records)
        if done >= trials:
            return f"all {trials} trials done"
        if not self._has_time(done):
            return "the time allowed by --timeout is used up"
        if (share := self._share_of_ceiling()) >= NEAR_CEILING_RATIO:
            return f"the best reaches {share:.0%} of what the step allows"
        if repeats >= MAX_REPEATS:
            return f"the last {repeats} proposals were all measured before"
        return None

    def find_no_gain(self) -> str | None:
        """Say why no configuration is likely to be better than the best; None while one may be."""
        if self._plan.request.sampler in NON_ADAPTIVE_SAMPLERS or not self._has_begun():
            return None
        proposal = self._knowledge.surrogate.propose()
        if proposal is None:
            return "every configuration within the limits was tried"
        if self._knowledge.count_feasible() < self.min_trials:
            return None
        if proposal.gain < MIN_EXPECTED_IMPROVEMENT:
            return f"no other configuration is expected to gain {MIN_EXPECTED_IMPROVEMENT:.1%} or more"
        if (tried := trials_since_improvement(self._knowledge.records)) >= self._patience:
            return f"no gain above {IMPROVEMENT_RATIO - 1:.0%} in the last {tried} trials"
        return None

    def _has_begun(self) -> bool:
        is_known = self._knowledge.find
        return self._knowledge.best is not None and all(is_known(config) is not None for config in self._first)

    def _share_of_ceiling(self) -> float:
        best = self._knowledge.best
        if best is None or not self._plan.has_reliable_upper_bound(best.config, best.score):
            return 0.0
        return best.score / self._plan.best_upper_bound

"""Picks who is measured again and who wins that, by what each costs the user.

Of configurations that are equally fast, the one is taken that trains as before, then the one with the fewest workers,
then the one whose settings are the conventional ones, then the one with the least memory. A setting leaves its
convention only where the measurement shows that this pays: so the conventional sibling of the best is measured again
with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Final, Literal

from autotune.config import Interval, LoaderConfig
from autotune.profiles.schema import AblationStep
from autotune.search.defaults import DefaultValues
from autotune.search.surrogate import SpeedupPrediction
from autotune.search.trial_record import TrialRecord
from autotune.settings import describe_difference
from autotune.trial.budgets import Budgets
from autotune.validation.rounds import Validation
from autotune.validation.runs import CandidateRuns, find_lead

FINALISTS: Final = 2
TIE_RATIO: Final = 0.97  # of the best's throughput, which was picked for being lucky; above it what costs less wins
NEAR_BEST_RATIO: Final = 0.92  # of the best's in the search, whose trials know their throughput to about 5 %
FINALIST_MIN_RATIO: Final = 0.75  # of the best's in the search, which may have been lucky; others above it get in, too
MIN_SPEEDUP: Final = 1.02  # over the baseline, or over training as it was; below it that stays
MIN_EXPECTED_GAIN: Final = 1.02  # of leaving conventions, by the search; below it the rounds will not show `TIE_RATIO`
TIGHT_BUDGET_SHARE: Final = 0.8  # of a budget; a configuration that uses more yields to one that does not


@dataclass(frozen=True, slots=True)
class Decision:
    """The answer."""

    config: LoaderConfig
    verdict: Literal["faster", "no_change"]
    samples_per_second: float  # median of the rounds
    ci95: Interval | None  # None without at least two rounds
    wait_share: float  # share of the run spent waiting for data
    speedup: float | None  # over the baseline; None when the baseline could not run
    speedup_ci95: Interval | None
    runner_up: LoaderConfig | None = None  # faster, but passed over for a cheaper one within noise
    departures: tuple[AblationStep, ...] = ()


def select_finalists(
    records: Sequence[TrialRecord],
    convention: DefaultValues,
    is_legal: Callable[[LoaderConfig], bool],
    expected: Mapping[LoaderConfig, float] | None = None,
    predict_speedups: Callable[[Sequence[LoaderConfig]], Sequence[SpeedupPrediction]] | None = None,
) -> list[LoaderConfig]:
    """Pick the configurations that deserve a second look; none when none works.

    They are the best, the same in order where it is not, its conventional sibling, the same with the user's own knobs
    as they were, the best of those that keep the batch size where that sibling does not, and the fewest workers close
    to the best; filled up with the next best to `FINALISTS`. What each is expected to reach, in samples per second,
    stands in for what it measured. Where leaving conventions is not expected to pay, that which keeps them stands in
    for the best.
    """
    measured = {record.config: record for record in records if record.is_feasible}  # the last look counts
    rates = {config: record.score for config, record in measured.items()} | dict(expected or {})
    ranked = sorted(measured, key=lambda config: rates[config], reverse=True)
    if not ranked:
        return []
    best = top = ranked[0]
    if predict_speedups is not None:
        best = _keep_conventions(top, convention, is_legal, predict_speedups)
    close = [config for config in ranked if rates[config] >= NEAR_BEST_RATIO * rates[top]]
    fewest = min(close, key=lambda config: config.dataloader.num_workers)
    siblings = [convention.keep_order(best), convention.default_variant(best), convention.keep_knobs(best)]
    if convention.list_training_changes(siblings[1]):  # the batch size, which a sibling shares
        unchanged = next((config for config in ranked if not convention.list_training_changes(config)), top)
        siblings.append(convention.keep_training(unchanged))
    siblings.append(convention.default_variant(fewest))
    wanted = dict.fromkeys([best, *(config for config in siblings if config in measured or is_legal(config))])
    worthy = [config for config in ranked if config not in wanted and rates[config] >= FINALIST_MIN_RATIO * rates[top]]
    return [*wanted, *worthy[: max(0, FINALISTS - len(wanted))]]


def _keep_conventions(
    best: LoaderConfig,
    convention: DefaultValues,
    is_legal: Callable[[LoaderConfig], bool],
    predict_speedups: Callable[[Sequence[LoaderConfig]], Sequence[SpeedupPrediction]],
) -> LoaderConfig:
    """Give what keeps the conventions, or at least the order, where leaving them is not expected to pay."""
    for kept in (convention.default_variant(best), convention.keep_order(best)):
        if kept != best and is_legal(kept) and predict_speedups([kept, best])[0].ratio < MIN_EXPECTED_GAIN:
            return kept
    return best


def decide(final: Validation, convention: DefaultValues, budgets: Budgets) -> Decision | None:
    """Decide by what the confirmation measured; None when neither the baseline nor any finalist ran."""
    baseline = final.baseline
    running = [one for one in final.finalists if one.rate > 0]
    if not running:
        return _keep_baseline(baseline) if baseline.rate > 0 else None
    pool = _settle_training(running, convention)
    best = find_lead(pool)
    cheapest = _pick_cheapest(pool, convention, budgets)
    for winner in (cheapest, best):
        if baseline.rate <= 0 or winner.is_faster_than(baseline, MIN_SPEEDUP, running):
            departures = _list_departures(winner, running, convention)
            return replace(_decision_for(winner, baseline, best, running), departures=departures)
    return _keep_baseline(baseline)


def _settle_training(running: Sequence[CandidateRuns], convention: DefaultValues) -> list[CandidateRuns]:
    """Give those that change training as little as pays: more only for a gain that is larger than its interval."""

    def count_changes(entrant: CandidateRuns) -> int:
        return len(convention.list_training_changes(entrant.config))

    pool: list[CandidateRuns] = []
    for _, group in groupby(sorted(running, key=count_changes), key=count_changes):
        changed = list(group)
        if not pool or find_lead(changed).is_faster_than(find_lead(pool), MIN_SPEEDUP, running):
            pool = changed
    return pool


def _pick_cheapest(pool: Sequence[CandidateRuns], convention: DefaultValues, budgets: Budgets) -> CandidateRuns:
    """Pick what costs the user least among those that are as fast as the best, and whose settings pay."""
    best = find_lead(pool)
    ties = [one for one in pool if one.rate >= TIE_RATIO * best.rate]
    paying = [one for one in ties if _pays(one, pool, convention, budgets)]
    siblings = [
        _find(pool, convention.default_variant(one.config)) for one in ties
    ]  # where only luck may have left them
    return min(paying or [one for one in siblings if one] or ties, key=lambda one: _rate_cost(one, convention, budgets))


def _pays(entrant: CandidateRuns, pool: Sequence[CandidateRuns], convention: DefaultValues, budgets: Budgets) -> bool:
    """Tell whether leaving conventions is faster than keeping them, or spares a budget; keeping needs no reason.

    Faster is what gains more than a tie, and where the rounds do not leave open that it loses as much.
    """
    sibling = _find(pool, convention.default_variant(entrant.config))
    if sibling is None or sibling is entrant or _is_tight(sibling, budgets) > _is_tight(entrant, budgets):
        return True
    _, interval = entrant.compare(sibling, pool)
    return sibling.rate < TIE_RATIO * entrant.rate and (interval is None or interval[0] >= TIE_RATIO)


def _rate_cost(entrant: CandidateRuns, convention: DefaultValues, budgets: Budgets) -> tuple[int, bool, int, int]:
    departures = len(convention.list_non_defaults(entrant.config))
    workers = entrant.config.dataloader.num_workers
    return workers, _is_tight(entrant, budgets), departures, entrant.peak_host_bytes


def _is_tight(entrant: CandidateRuns, budgets: Budgets) -> bool:
    """Tell whether a configuration comes so near a budget that a little more memory in training would break it."""
    return (
        entrant.peak_host_bytes > TIGHT_BUDGET_SHARE * budgets.memory_bytes
        or entrant.peak_shm_bytes > TIGHT_BUDGET_SHARE * budgets.shm_bytes
    )


def _find(runs: Sequence[CandidateRuns], config: LoaderConfig) -> CandidateRuns | None:
    return next((one for one in runs if one.config == config), None)


def _list_departures(
    winner: CandidateRuns, running: Sequence[CandidateRuns], convention: DefaultValues
) -> tuple[AblationStep, ...]:
    """List what leaving conventions gave, as far as the confirmation holds the configurations that keep them."""
    unchanged = [one for one in running if not convention.list_training_changes(one.config)]
    sibling = _find(running, convention.default_variant(winner.config))
    others = [_find(running, keep(winner.config)) for keep in (convention.keep_order, convention.keep_knobs)]
    rivals = list(filter(None, dict.fromkeys((*others, sibling))))
    if unchanged and "batch_size" in convention.list_training_changes(winner.config):
        rivals.append(find_lead(unchanged))
    return tuple(_describe_gain(winner, rival, running) for rival in rivals if rival is not winner)


def _describe_gain(winner: CandidateRuns, rival: CandidateRuns, field: Sequence[CandidateRuns]) -> AblationStep:
    speedup, interval = winner.compare(rival, field)
    setting = describe_difference(winner.config, rival.config)
    return AblationStep(setting=setting, samples_per_second=winner.rate, speedup=speedup, speedup_ci95=interval)


def _decision_for(
    winner: CandidateRuns, baseline: CandidateRuns, best: CandidateRuns, field: Sequence[CandidateRuns]
) -> Decision:
    speedup, interval = winner.compare(baseline, field) if baseline.rate > 0 else (None, None)
    return Decision(
        config=winner.config,
        verdict="faster",
        samples_per_second=winner.rate,
        ci95=winner.ci95(field, [baseline]),
        wait_share=winner.wait_share,
        speedup=speedup,
        speedup_ci95=interval,
        runner_up=best.config if best is not winner else None,
    )


def _keep_baseline(baseline: CandidateRuns) -> Decision:
    kept = _decision_for(baseline, baseline, baseline, ())
    return replace(kept, verdict="no_change", speedup=1.0, speedup_ci95=(1.0, 1.0))

"""Selects the candidates of the validation, and decides which of them is recommended.

Of the candidates that tie with the fastest, in the validation and the search, the one with the fewest changes of
training wins, then workers, then non-default settings, then memory. A gain counts only if it exceeds its interval: over
the baseline for any recommendation, over unchanged training for a change of training, over default values for a
non-default setting. That interval is of the scatter of runs; the one that is reported also has their sampling error.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final, NamedTuple

from autotune.config import Interval, LoaderConfig
from autotune.profiles.schema import Contribution
from autotune.search.cost_model import has_spinning_step
from autotune.search.plan import Plan
from autotune.search.study import TrialRecord
from autotune.search.surrogate import TrialModel
from autotune.settings import describe_difference, differing_settings
from autotune.validation.candidate_runs import CandidateRuns
from autotune.validation.noise import measure_change
from autotune.validation.runs import Validation

NEAR_BEST_RATIO: Final = 0.92  # of the best of the search, whose trials are accurate to about 5%
MIN_CANDIDATE_RATIO: Final = 0.75  # of the best of the search, which may be an outlier
MIN_EXPECTED_GAIN: Final = 1.02  # of non-default settings, by the search; the validation cannot show a smaller one
TIE_RATIO: Final = 0.98  # of the fastest, whose throughput is biased upwards by the selection
NEARLY_FULL_SHARE: Final = 0.8  # of a budget; a configuration that uses more loses against one that uses less


class Decision(NamedTuple):
    """The recommended configuration and its numbers, as in `ProfileResult`."""

    config: LoaderConfig
    samples_per_second: float
    samples_per_second_ci95: Interval | None
    speedup: float | None
    speedup_ci95: Interval | None
    gains: tuple[Contribution, ...] = ()


def select_candidates(
    plan: Plan, records: Sequence[TrialRecord], model: TrialModel, failed: Collection[LoaderConfig] = ()
) -> list[LoaderConfig]:
    """Select the configurations that deserve a second measurement; none if all completed trials are in `failed`.

    These are the best; its variants in order, with default values and with unchanged training; the one with the fewest
    workers near the best; the one with the most that is not far behind, if threads of the step spin; and the next best
    with other workers if all of these have as many. They rank by the throughput that the model expects after all
    trials. If non-default settings are not expected to gain, their variant replaces the best. Those that change less of
    the training come first, in case that there is no time for the others.
    """
    surrogate = model.surrogate
    working = [one.config for one in records if one.is_feasible and one.config not in failed]
    if not working:
        return []
    rates = dict(zip(working, surrogate.predict(working), strict=True))
    ranked = sorted(rates, key=lambda config: rates[config], reverse=True)
    best = top = ranked[0]
    for simpler in (plan.keep_order(top), plan.default_variant(top)):
        if simpler != top and model.is_allowed(simpler):
            ((gain, _),) = surrogate.predict_speedups([simpler, top])
            best = simpler if gain < MIN_EXPECTED_GAIN else best
    variants = [plan.keep_order(best), plan.default_variant(best)]
    if plan.list_training_changes(variants[1]):  # the batch size, which a default variant shares
        variants.append(plan.keep_training(next((one for one in ranked if not plan.list_training_changes(one)), top)))
    near = [config for config in ranked if rates[config] >= NEAR_BEST_RATIO * rates[top]]
    near.sort(key=lambda config: config.dataloader.num_workers)
    variants.append(plan.default_variant(near[0]))
    good = [config for config in ranked if rates[config] >= MIN_CANDIDATE_RATIO * rates[top]]
    if has_spinning_step(plan.workload):  # short trials of such a step differ by as much as numbers of workers do
        variants.append(plan.default_variant(max(good, key=lambda config: config.dataloader.num_workers)))
    selected = dict.fromkeys([best, *(config for config in variants if config in rates or model.is_allowed(config))])
    workers = {config.dataloader.num_workers for config in selected}
    others = [one for one in good if one.dataloader.num_workers not in workers]
    selected |= dict.fromkeys(others[:1] if len(workers) == 1 else ())  # a short trial may be off by 10%
    return sorted(selected, key=lambda config: len(plan.list_training_changes(config)))


def decide(
    validation: Validation,
    plan: Plan,
    trial_rates: Mapping[LoaderConfig, float] | None = None,
) -> Decision | None:
    """Decide by the runs of the validation; None if neither the baseline nor any candidate ran, or only the baseline.

    The throughputs in `trial_rates`, those of the search, only show how much the machine has changed since.
    """
    change = measure_change(validation.measured, trial_rates or {})
    baseline, rated = validation.baseline, (one for one in validation.candidates if one.rate)
    field, comparison = validation.field, validation.comparison
    running = sorted(rated, key=lambda one: one.rate, reverse=True)
    by_config = {one.config: one for one in running}

    def count_changes(one: CandidateRuns) -> int:
        return len(plan.list_training_changes(one.config))

    def is_nearly_full(one: CandidateRuns) -> bool:
        memory, shm = NEARLY_FULL_SHARE * plan.budgets.memory_bytes, NEARLY_FULL_SHARE * plan.budgets.shm_bytes
        return one.peak_host_bytes > memory or one.peak_shm_bytes > shm

    def cost(one: CandidateRuns) -> tuple[int, int, bool, int, int]:
        loader, non_defaults = one.config.dataloader, differing_settings(one.config, plan.default_variant(one.config))
        return count_changes(one), loader.num_workers, is_nearly_full(one), len(non_defaults), one.peak_host_bytes

    def is_worth_its_changes(one: CandidateRuns) -> bool:
        alternative = comparison.find_alternative(plan, one, running)
        return alternative is None or comparison.is_gain(one, alternative)

    def is_worth_its_settings(one: CandidateRuns) -> bool:
        variant = by_config.get(plan.default_variant(one.config))
        if variant is None or variant is one or variant not in pool or is_nearly_full(variant) > is_nearly_full(one):
            return True
        return comparison.is_gain(one, variant, 1 / TIE_RATIO, floor=TIE_RATIO)

    pool = [one for one in running if not baseline.rate or comparison.is_faster(one, baseline)]
    pool = [one for one in pool if is_worth_its_changes(one)]
    pool = [one for one in pool if is_worth_its_settings(one)]
    highest = max(map(comparison.rate, pool), default=0.0)
    ties = [one for one in pool if comparison.rate(one) >= TIE_RATIO * highest]
    if field and not any(one.rates or one.failures for one in field):
        return None  # it ended after the baseline
    if not ties:
        kept = Decision(baseline.config, baseline.rate, baseline.ci95((), field, change), 1.0, (1.0, 1.0))
        return kept if baseline.rate else None
    winner = min(ties, key=cost)
    speedup, interval = comparison.report_speedup(winner, baseline) if baseline.rate else (None, None)
    others = [by_config.get(keep(winner.config)) for keep in (plan.keep_order, plan.default_variant)]
    if "batch_size" in plan.list_training_changes(winner.config):
        others.append(next((one for one in running if not count_changes(one)), None))
    gains = list[Contribution]()
    for one in dict.fromkeys(one for one in others if one is not None and one is not winner):
        setting, (gain, ci95) = describe_difference(winner.config, one.config), comparison.gain(winner, one)
        gains.append(Contribution(setting=setting, samples_per_second=winner.rate, speedup=gain, speedup_ci95=ci95))
    rate_interval = winner.ci95(field, [baseline], change)
    return Decision(winner.config, winner.rate, rate_interval, speedup, interval, tuple(gains))

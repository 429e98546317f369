"""What each setting of the answer gave: from the baseline to the answer one setting at a time.

In brief it is told by the model, as the trials of the search have corrected it. In full all steps are measured in turn,
round by round, in the warm process, the baseline and the answer among them: what is compared was measured alike,
minutes of drift cancel, and the rounds tell how sure a step is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from autotune.config import LoaderConfig
from autotune.profiles.schema import AblationStep
from autotune.progress import ProgressListener
from autotune.search.loop import SearchOutcome
from autotune.search.plan import GUESS_ERROR, Plan
from autotune.settings import config_from_values, list_settings_of, setting_values
from autotune.trial.interruption import capture_interruption
from autotune.trial.protocol import RunTrial, TrialRequest
from autotune.trial.statistics import NORMAL_QUANTILE
from autotune.validation.decision import Decision
from autotune.validation.runs import CandidateRuns

ROUNDS: Final = 3
ABLATION_TIME_SHARE: Final = 0.4  # of a trial's time: each step is measured in every round
ABLATION_PRECISION: Final = 0.03  # relative half-width at which a measurement ends


def ablation_steps(baseline: LoaderConfig, answer: LoaderConfig) -> Iterator[tuple[str, LoaderConfig]]:
    """Walk from one configuration to another, changing one setting at a time.

    Yields:
        What is set, as in `num_workers=12`, and the configuration with it and all before it; the last is the answer.
    """
    values, goal, config = setting_values(baseline), setting_values(answer), baseline
    for knob in list_settings_of(answer):
        if knob.needs == "num_workers" and not answer.dataloader.num_workers:
            continue
        values[knob.name] = goal[knob.name]
        changed = config_from_values(values, answer.process.multiprocessing_context)
        if changed != config:
            config = changed
            yield f"{knob.name}={goal[knob.name]}", config


@dataclass(frozen=True, slots=True)
class Ablation:
    """What each setting gave, by the rounds that were measured whole."""

    steps: tuple[AblationStep, ...] = ()
    interrupted_by: BaseException | None = None  # None when it came to its own end


def ablate(
    plan: Plan,
    decision: Decision,
    run_trial: RunTrial,
    progress: ProgressListener,
    has_time: Callable[[int], bool] = lambda count: True,
) -> Ablation:
    """Measure the steps between the baseline and the answer, all of them in each round, both ends included.

    A single step gave what the decision says. No further round begins unless `has_time` tells that there is time for so
    many more measurements.
    """
    steps = list(ablation_steps(plan.baseline, decision.config))
    if len(steps) == 1:
        return Ablation((_take_over(decision, steps[0][0]),))
    runs = [CandidateRuns(plan.baseline), *(CandidateRuns(config) for _, config in steps)]
    rows: tuple[AblationStep, ...] = ()
    with capture_interruption() as cut:
        for _ in range(ROUNDS):
            if not has_time(len(runs)):
                break
            for step in runs:
                _measure_step(plan, step, run_trial, progress)
            rows = _compare_steps([setting for setting, _ in steps], runs)
    return Ablation(rows, cut.cause)


def estimate_steps(plan: Plan, decision: Decision, found: SearchOutcome) -> Ablation:
    """Tell the steps between the baseline and the answer as the search knows them, back from what the answer reaches.

    A step from or to what nobody tried is as unsure as a guess. A single one gave what the decision says.
    """
    steps = list(ablation_steps(plan.baseline, decision.config))
    if len(steps) == 1:
        return Ablation((_take_over(decision, steps[0][0]),))
    path = [plan.baseline, *(config for _, config in steps)]
    tried = {record.config for record in found.records if record.is_feasible}
    rate, rows = decision.samples_per_second, list[AblationStep]()
    for (setting, config), before, gain in reversed(list(zip(steps, path, found.predict_speedups(path), strict=False))):
        error = gain.log_error if {before, config} <= tried else math.hypot(gain.log_error, GUESS_ERROR)
        rows.insert(0, _estimate_step(setting, rate, gain.ratio, error))
        rate /= gain.ratio
    return Ablation(tuple(rows))


def _estimate_step(setting: str, samples_per_second: float, ratio: float, log_error: float) -> AblationStep:
    spread = math.exp(NORMAL_QUANTILE * log_error)
    return AblationStep(
        setting=setting,
        samples_per_second=samples_per_second,
        speedup=ratio,
        speedup_ci95=(ratio / spread, ratio * spread),
        is_estimate=True,
    )


def _take_over(decision: Decision, setting: str) -> AblationStep:
    return AblationStep(
        setting=setting,
        samples_per_second=decision.samples_per_second,
        speedup=decision.speedup or 1.0,
        speedup_ci95=decision.speedup_ci95,
    )


def _measure_step(plan: Plan, step: CandidateRuns, run_trial: RunTrial, progress: ProgressListener) -> None:
    if step.failures:
        return
    progress.show_step(step.config, None)
    request = TrialRequest(
        config=step.config,
        epochs=plan.request.epochs,
        seconds=ABLATION_TIME_SHARE * plan.request.trial_seconds,
        precision=ABLATION_PRECISION,
    )
    step.note(run_trial(request), plan.request.epochs, plan.cold_start_seconds(step.config))
    progress.show_step(step.config, 0.0 if step.failures else step.scores[-1])


def _compare_steps(settings: Sequence[str], runs: Sequence[CandidateRuns]) -> tuple[AblationStep, ...]:
    """Compare each step with the one before; one that does not work alone is taken together with the next."""
    rows: list[AblationStep] = []
    before, pending = runs[0], list[str]()
    for setting, step in zip(settings, runs[1:], strict=True):
        pending.append(setting)
        if before.failures or step.failures:
            continue
        speedup, interval = step.compare(before)
        rows.append(
            AblationStep(
                setting=" ".join(pending), samples_per_second=step.rate, speedup=speedup, speedup_ci95=interval
            )
        )
        before, pending = step, []
    return tuple(rows)

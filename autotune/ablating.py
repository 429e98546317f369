"""What each setting of the answer gave: from the baseline to the answer one setting at a time, each step measured."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from autotune.messages import RunTrial, TrialRequest
from autotune.planning import Plan
from autotune.request import KNOBS, Knob
from autotune.schema import Contribution, LoaderConfig
from autotune.space import list_values, make_config
from autotune.view import View

WITHOUT_WORKERS: Final[tuple[Knob, ...]] = (
    "batch_size",
    "num_workers",
    "pin_memory",
    "device_prefetch",
)  # the rest loses its meaning
RUNG_SHARE: Final = 0.6  # of a trial's time
RUNG_PRECISION: Final = 0.03


def list_rungs(baseline: LoaderConfig, answer: LoaderConfig) -> Iterator[tuple[str, LoaderConfig]]:
    """Walk from one configuration to another, changing one setting at a time.

    Args:
        baseline: Where to start.
        answer: Where to end.

    Yields:
        What is set, as in `num_workers=12`, and the configuration with it and all before it; the last is the answer.
    """
    values, goal, config = list_values(baseline), list_values(answer), baseline
    ladder = KNOBS if answer.dataloader.num_workers else WITHOUT_WORKERS
    for knob in ladder:
        values[knob] = goal[knob]
        changed = make_config(values, answer.process.multiprocessing_context)
        if changed != config:
            config = changed
            yield f"{knob}={goal[knob]}", config


class Ablation:
    """The steps under way; those measured so far stay readable when it is interrupted.

    Args:
        plan: What there is to work with.
        run_trial: Measures one configuration.
        view: Is told what happens.
    """

    def __init__(self, plan: Plan, run_trial: RunTrial, view: View) -> None:
        self._plan = plan
        self._run_trial = run_trial
        self._view = view
        self.rows: tuple[Contribution, ...] = ()

    def run(self, baseline_rate: float, answer: LoaderConfig, answer_rate: float) -> None:
        """Measure the steps between the baseline and the answer, whose throughputs are known.

        Args:
            baseline_rate: Confirmed throughput of the baseline, samples per second, greater than zero.
            answer: The configuration that was chosen.
            answer_rate: Its confirmed throughput.
        """
        rungs = list(list_rungs(self._plan.baseline, answer))
        rates = [*(self._measure(config) for _, config in rungs[:-1]), answer_rate]
        rows: list[Contribution] = []
        before, pending = baseline_rate, []
        for (setting, _), rate in zip(rungs, rates, strict=True):
            pending.append(setting)
            if rate is not None:  # a step that does not work alone is taken together with the next
                rows.append(Contribution(setting=" ".join(pending), samples_per_second=rate, speedup=rate / before))
                before, pending = rate, []
        self.rows = tuple(rows)

    def _measure(self, config: LoaderConfig) -> float | None:
        self._view.show_step(config, None)
        request = TrialRequest(
            config=config,
            epochs=self._plan.request.epochs,
            seconds=RUNG_SHARE * self._plan.request.trial_seconds,
            precision=RUNG_PRECISION,
        )
        found = self._plan.estimate(self._run_trial(request))
        rate = (found and found.samples_per_second) or None
        self._view.show_step(config, rate or 0.0)
        return rate

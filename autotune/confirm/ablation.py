"""What each setting of the answer gave: from the baseline to the answer one setting at a time.

All steps are measured in turn, round by round, in the warm process, the baseline and the answer among them: what is
compared was measured alike, minutes of drift cancel, and the rounds tell how sure a step is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from autotune.confirm.confirmation import Contestant
from autotune.trial.protocol import RunTrial, TrialRequest
from autotune.search.plan import Plan
from autotune.request import KNOBS, Knob
from autotune.profiles.schema import Contribution, LoaderConfig
from autotune.search.space import list_values, make_config
from autotune.progress import View

WITHOUT_WORKERS: Final[tuple[Knob, ...]] = (
    "batch_size",
    "num_workers",
    "pin_memory",
    "device_prefetch",
)  # the rest loses its meaning
ROUNDS: Final = 3
STEP_SHARE: Final = 0.4  # of a trial's time: each step is measured in every round
STEP_PRECISION: Final = 0.03  # relative half-width at which a measurement ends


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

    def run(
        self, answer: LoaderConfig, whole: Contribution, has_time: Callable[[int], bool] = lambda count: True
    ) -> None:
        """Measure the steps between the baseline and the answer, all of them in each round, both ends included.

        Args:
            answer: The configuration that was chosen.
            whole: What all steps gave together, as confirmed; it is the row where there is but one step.
            has_time: Tells whether there is time for so many more measurements; else no further round begins.
        """
        rungs = list(list_rungs(self._plan.baseline, answer))
        if len(rungs) == 1:
            self.rows = (whole.model_copy(update={"setting": rungs[0][0]}),)
            return
        contestants = [Contestant(self._plan.baseline), *(Contestant(config) for _, config in rungs)]
        for _ in range(ROUNDS):
            if not has_time(len(contestants)):
                return
            for contestant in contestants:
                self._measure(contestant)
            self.rows = _compare_steps([setting for setting, _ in rungs], contestants)

    def _measure(self, contestant: Contestant) -> None:
        if contestant.failures:
            return
        self._view.show_step(contestant.config, None)
        request = TrialRequest(
            config=contestant.config,
            epochs=self._plan.request.epochs,
            seconds=STEP_SHARE * self._plan.request.trial_seconds,
            precision=STEP_PRECISION,
        )
        result = self._run_trial(request)
        contestant.note(result, self._plan.request.epochs, self._plan.cold_seconds(contestant.config))
        self._view.show_step(contestant.config, 0.0 if contestant.failures else contestant.scores[-1])


def _compare_steps(settings: Sequence[str], contestants: Sequence[Contestant]) -> tuple[Contribution, ...]:
    """Compare each step with the one before; one that does not work alone is taken together with the next."""
    rows: list[Contribution] = []
    before, pending = contestants[0], list[str]()
    for setting, contestant in zip(settings, contestants[1:], strict=True):
        pending.append(setting)
        if before.failures or contestant.failures:
            continue
        speedup, interval = contestant.compare(before)
        rows.append(
            Contribution(
                setting=" ".join(pending),
                samples_per_second=contestant.rate,
                speedup=speedup,
                speedup_ci95=interval,
            )
        )
        before, pending = contestant, []
    return tuple(rows)

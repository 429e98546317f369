"""Arguments of the user's own factory: called with the values of each trial, and with its own where none is asked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from autotune.child.workload_loading import change_knobs, load_workload
from autotune.config import KnobValue
from autotune.errors import UsageError
from autotune.request import WorkloadRequest
from autotune.runner.runner import TrialRunner
from autotune.trial.measurement import TrialResult
from autotune.trial.protocol import TrialRequest
from tests.builders import make_config, make_limits
from tests.kept_server import KeptStarter

ROOT = str(Path(__file__).parents[2])
FACTORY = "tests.own_loaders:make_repeated"
FUNCTION = "tests.own_loaders:load_repeated"
CHOICES: dict[str, tuple[KnobValue, ...]] = {"repeats": (1, 2, 4)}
pytestmark = pytest.mark.usefixtures("leaves_nothing")


def ask(dataset: str = FACTORY, **changes: Any) -> WorkloadRequest:
    return WorkloadRequest(dataset=dataset, **{"knobs": CHOICES, "is_loader": dataset == FUNCTION, **changes})


@pytest.mark.parametrize("dataset", [FACTORY, FUNCTION])
def test_what_a_factory_does_by_itself_is_where_it_starts_from(dataset: str) -> None:
    assert load_workload(ask(dataset)).knobs == {"repeats": 2}


@pytest.mark.parametrize(
    ("choices", "value"), [((4, 8), 4), ((1.5, 1.0, 9.0), 1.5), (("few", "many"), "few"), ((True, False), True)]
)
def test_a_default_that_is_no_choice_is_replaced_by_the_nearest_and_the_user_is_told(
    choices: tuple[KnobValue, ...], value: KnobValue
) -> None:
    workload = load_workload(ask("tests.own_loaders:make_any", knobs={"level": choices}))
    assert workload.knobs == {"level": value}
    assert workload.note is not None
    assert f"level={value} instead of 2" in workload.note


def test_a_factory_that_takes_any_argument_starts_from_the_first_choice() -> None:
    workload = load_workload(ask("tests.own_loaders:make_from_anything"))
    assert workload.knobs == {"repeats": 1}
    assert workload.note is None


@pytest.mark.parametrize("dataset", ["tests.own_loaders:make_doubling", "tests.own_loaders:NUMBERS"])
def test_a_knob_that_a_factory_does_not_take_is_refused(dataset: str) -> None:
    with pytest.raises(UsageError, match=r"--knob repeats: tests.own_loaders:\w+ takes no such argument"):
        load_workload(ask(dataset))


def test_a_function_of_the_settings_is_called_with_other_values_without_loading_anything_anew() -> None:
    workload = load_workload(ask(FUNCTION))
    changed = change_knobs(workload, {"repeats": 4})
    assert changed is not None
    assert changed.own is not None
    assert len(changed.own.make({"batch_size": 10, "num_workers": 0})) == 4 * 60 / 10
    assert change_knobs(load_workload(ask()), {"repeats": 4}) is None


def open_runner(request: WorkloadRequest) -> TrialRunner:
    return TrialRunner(request, stall_seconds=60.0, starter=KeptStarter(ROOT))


def run(runner: TrialRunner, repeats: KnobValue | None, *, fresh: bool = False) -> TrialResult:
    knobs = {} if repeats is None else {"repeats": repeats}
    config = make_config(1, batch_size=10).model_copy(update={"knobs": knobs})
    return runner.run(TrialRequest(config=config, epochs=1, seconds=20.0, fresh=fresh))


def count_samples(result: TrialResult) -> int:
    assert result.measurement is not None, result.message
    return result.measurement.epochs[0].samples


@pytest.mark.parametrize("dataset", [FACTORY, FUNCTION])
def test_every_trial_has_the_values_that_it_asks_for_whether_warm_or_fresh(dataset: str) -> None:
    with open_runner(ask(dataset, step_seconds=1e-4, working_dir=ROOT)) as runner:
        runner.limit(make_limits())
        seen = [count_samples(run(runner, repeats)) for repeats in (1, 4, None)]
        seen.append(count_samples(run(runner, 1, fresh=True)))
    assert seen == [60, 240, 120, 60]


def test_a_value_with_which_the_factory_fails_fails_the_trial_only() -> None:
    request = ask(knobs={"repeats": (1, 2, -1)}, step_seconds=1e-4, working_dir=ROOT)
    with open_runner(request) as runner:
        runner.limit(make_limits())
        failed, worked = run(runner, -1), run(runner, 2)
    assert "ValueError: repeats must be positive" in failed.message
    assert count_samples(worked) == 120

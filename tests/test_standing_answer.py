"""A request that the file answers already is looked at once more, and searched again where the answer fell."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from autotune.profiles.file import read_file
from autotune.profiles.saving import save_profile
from autotune.profiles.schema import TunedProfile
from autotune.request import TuningRequest
from autotune.standing_answer import find_answer, list_surplus
from autotune.validation.remeasurement import Remeasurement
from tests.test_end_to_end import run

pytestmark = pytest.mark.usefixtures("leaves_nothing")
OUTPUT = Path("dltune.json")


@pytest.fixture(scope="module")
def first_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("first_run")
    tune(folder=folder)
    return folder


@pytest.fixture(autouse=True)
def answered(first_run: Path, workdir: Path) -> None:
    """Find what a run has left in the folder."""
    shutil.copytree(first_run, workdir, dirs_exist_ok=True)


def tune(*options: str, folder: Path | None = None) -> str:
    finished = run("make_waiting", "--trials", "2", *options, folder=folder)
    assert finished.returncode == 0, finished.stderr
    return finished.stdout + finished.stderr


def change_answer(**result: object) -> TunedProfile:
    """Have the file say something else of what it promises."""
    (profile,) = read_file(OUTPUT).profiles
    changed = profile.model_copy(update={"result": profile.result.model_copy(update=result)})
    save_profile(OUTPUT, changed)
    return changed


def read_request() -> TuningRequest:
    (profile,) = read_file(OUTPUT).profiles
    return TuningRequest.model_validate(profile.request)


def test_an_answer_that_still_holds_is_measured_again_and_not_searched() -> None:
    change_answer(samples_per_second_ci95=(1.0, 1e9))
    before = OUTPUT.read_text()
    told = tune()
    assert "still holds" in told
    assert "trial" not in told.split("Best:")[0].split("Keep:")[0]
    assert OUTPUT.read_text() == before


@pytest.mark.slow
def test_an_answer_is_searched_anew_where_that_is_asked_for() -> None:
    change_answer(samples_per_second_ci95=(1.0, 1e9))
    assert "trial  1/2" in tune("--afresh")


def test_an_answer_that_does_not_hold_any_more_is_searched_anew_and_says_why() -> None:
    change_answer(samples_per_second=1e7, samples_per_second_ci95=(9e6, 1.1e7), baseline=None)
    told = tune()
    assert "of its predicted throughput" in told
    assert "trial  1/2" in told
    assert read_file(OUTPUT).profiles[0].result.samples_per_second < 1e7


@pytest.mark.slow
def test_an_answer_that_is_much_too_modest_is_searched_anew_and_says_why() -> None:
    change_answer(samples_per_second=10.0, samples_per_second_ci95=(9.0, 11.0), baseline=None)
    told = tune()
    assert "of its predicted throughput" in told
    assert "trial  1/2" in told


@pytest.mark.parametrize(
    ("kept", "is_surplus"), [((1.3, 1.6), True), ((1.2, 1.6), False), ((0.5, 0.6), False), (None, False)]
)
def test_what_surely_reaches_a_quarter_more_than_was_promised_is_named(
    kept: tuple[float, float] | None, is_surplus: bool
) -> None:
    found = Remeasurement(
        samples_per_second=1.45,
        predicted=1.0,
        speedup=None,
        speedup_ci95=None,
        ratio_to_prediction=1.45,
        ratio_to_prediction_ci95=kept,
    )
    assert bool(list_surplus(found)) is is_surplus


def test_another_request_is_not_answered_by_what_the_file_holds() -> None:
    request = read_request()
    assert find_answer(request) is not None
    assert find_answer(request.model_copy(update={"epochs": 3})) is None
    assert find_answer(request.model_copy(update={"output": "elsewhere.json"})) is None
    assert find_answer(request.model_copy(update={"trials": 3})) is None


def test_what_was_measured_answers_a_request_for_a_prediction() -> None:
    assert find_answer(read_request().model_copy(update={"trials": 0})) is not None


def test_what_was_only_predicted_or_never_confirmed_answers_nothing() -> None:
    change_answer(validation_runs=0)
    assert find_answer(read_request()) is None

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from autotune.errors import ProfileError, UsageError
from autotune.profiles.schema import TunedProfile
from autotune.search.warm_start import MAX_SEEDS, plan_warm_start, rebuild_request, scale_workers
from autotune.tuning import tune
from tests.builders import make_config, make_machine, make_profile
from tests.test_tuning import Bench, make_request, saturating, waiting_workload

MACHINE = make_machine(affinity_cpus=2)

pytestmark = pytest.mark.usefixtures("workdir")


def tune_cold(bench: Bench) -> TunedProfile:
    return tune(make_request(), run_trial=bench, machine=MACHINE, workload=waiting_workload()).profile


def tune_warm(bench: Bench, earlier: TunedProfile, **machine: Any) -> TunedProfile:
    here = make_machine(**{"affinity_cpus": 2} | machine)
    request = rebuild_request(earlier, here.hardware(None), "dltune.json")
    return tune(request, run_trial=bench, machine=here, workload=waiting_workload(), earlier=earlier).profile


def test_a_warm_search_reaches_the_same_answer_with_what_it_tries_first() -> None:
    cold, warm = Bench(saturating), Bench(saturating)
    earlier = tune_cold(cold)
    again = tune_warm(warm, earlier)
    assert len(warm.configs) <= 1 + MAX_SEEDS  # one is the baseline, which is no trial of the search's
    assert len(warm.configs) < len(cold.configs)
    assert again.result.samples_per_second >= 0.99 * earlier.result.samples_per_second


def test_what_earlier_trials_reached_guides_the_search_and_is_no_result() -> None:
    earlier = tune_cold(Bench(saturating))
    slower = Bench(lambda config: saturating(config) / 2)
    again = tune_warm(slower, earlier)
    assert again.result.samples_per_second == pytest.approx(earlier.result.samples_per_second / 2, rel=0.02)


def test_the_earlier_result_becomes_history_and_other_profiles_stay(workdir: Path) -> None:
    from autotune.profiles.store import read_file, save_profile

    earlier = tune_cold(Bench(saturating))
    save_profile(workdir / "dltune.json", make_profile("another"))
    tune_warm(Bench(saturating), earlier)
    by_name = {profile.name: profile for profile in read_file(workdir / "dltune.json").profiles}
    assert set(by_name) == {"another", earlier.name}
    assert [past.samples_per_second for past in by_name[earlier.name].history] == [earlier.result.samples_per_second]


def test_on_another_machine_the_result_gets_a_name_of_its_own() -> None:
    earlier = tune_cold(Bench(saturating))
    assert tune_warm(Bench(saturating), earlier, affinity_cpus=8).name != earlier.name


def test_on_another_machine_no_rates_are_carried_over_and_workers_grow_with_the_cpus() -> None:
    profile = make_profile(dataloader=make_config(8, 2).dataloader)
    larger = profile.hardware.model_copy(update={"usable_cpus": 2 * profile.hardware.usable_cpus})
    warm = plan_warm_start(profile, larger)
    assert warm.observations == ()
    assert [config.dataloader.num_workers for config in warm.seeds] == [8, 16]


def test_no_workers_stay_no_workers_on_any_machine() -> None:
    assert scale_workers(make_config(0), 4.0) == make_config(0)


def test_workers_in_proportion_that_are_no_choice_are_tried_as_the_nearest_one() -> None:
    bench = Bench(saturating)
    earlier = tune_cold(Bench(saturating))
    earlier = earlier.model_copy(update={"config": make_config(6, 2)})
    tune_warm(bench, earlier, affinity_cpus=3)  # half as many again, and 9 is not among the choices
    tried = [config.dataloader.num_workers for config in bench.configs]
    assert 9 not in tried
    assert {6, 8} <= set(tried[:4]) or {6, 10} <= set(tried[:4])


def test_the_answer_and_the_best_trials_are_tried_first() -> None:
    earlier = tune_cold(Bench(saturating))
    warm = plan_warm_start(earlier, earlier.hardware)
    assert warm.seeds[0] == earlier.config
    assert len(warm.seeds) == MAX_SEEDS
    assert len(warm.observations) > MAX_SEEDS


def test_the_request_is_asked_again_for_this_machine() -> None:
    earlier = tune_cold(Bench(saturating))
    request = rebuild_request(earlier, earlier.hardware, "other.json", trials=7)
    assert (request.output, request.profile, request.trials, request.resume) == ("other.json", earlier.name, 7, False)
    assert request.workload == make_request().workload


def test_the_request_is_asked_again_for_the_current_folder_and_another_storage() -> None:
    request = make_request()
    workload = request.workload.model_copy(update={"working_dir": "/home/ada/checkout"})
    asked = request.model_copy(update={"workload": workload, "storage": "sqlite:////home/ada/studies.db"})
    earlier = make_profile(request=asked.model_dump(mode="json"))
    again = rebuild_request(earlier, earlier.hardware, "dltune.json", storage="sqlite:///here.db")
    assert (again.workload.working_dir, again.storage) == (".", "sqlite:///here.db")


def test_a_storage_without_its_password_is_refused_before_anything_is_started() -> None:
    earlier = make_profile(request=make_request(storage="postgresql://me:secret@host/db").record())
    request = rebuild_request(earlier, earlier.hardware, "dltune.json")
    with pytest.raises(UsageError, match=r"//me:\*{3}@host/db was given with a password.*--storage, or in DLTUNE_ST"):
        tune(request, run_trial=Bench(saturating), machine=MACHINE, workload=waiting_workload(), earlier=earlier)


def test_a_profile_without_its_request_says_what_to_do() -> None:
    profile = make_profile()
    with pytest.raises(ProfileError, match="dltune --dataset"):
        rebuild_request(profile, profile.hardware, "dltune.json")


def test_a_request_that_cannot_be_read_is_a_sentence() -> None:
    profile = make_profile().model_copy(update={"request": {"workload": {"dataset": ""}}})
    with pytest.raises(ProfileError, match=r"workload\.dataset"):
        rebuild_request(profile, profile.hardware, "dltune.json")

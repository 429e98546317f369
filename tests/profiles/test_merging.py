from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from autotune.profiles.merging import Source, merge_profiles
from autotune.profiles.schema import TunedProfile
from tests.builders import make_hardware, make_profile, make_profile_result

OLD, NEW = datetime(2026, 5, 1, tzinfo=UTC), datetime(2026, 6, 1, tzinfo=UTC)


def make_tuned(name: str = "cpu-4c-0a1b2c3d", cpus: float = 4.0, rate: float = 500.0, **changes: Any) -> TunedProfile:
    result = make_profile_result(samples_per_second=rate, samples_per_second_ci95=(0.98 * rate, 1.02 * rate))
    return make_profile(name, hardware=make_hardware(usable_cpus=cpus), result=result, **changes)


def merge(*profiles: TunedProfile) -> tuple[list[TunedProfile], tuple[str, ...]]:
    found = merge_profiles([Source(f"{number}.json", (profile,)) for number, profile in enumerate(profiles)])
    return list(found.profiles), found.remarks


def test_profiles_of_three_machine_types_stand_in_one_file() -> None:
    three = [make_tuned(f"cpu-{cpus}c-0a1b2c3d", cpus) for cpus in (4, 8, 16)]
    assert merge(*three) == (three, ())


def test_of_equal_machines_the_newest_result_is_taken_and_the_other_is_its_history() -> None:
    new, old = make_tuned(created_at=NEW, rate=505.0), make_tuned(created_at=OLD)
    (kept,), remarks = merge(new, old)
    assert (kept.created_at, kept.result.samples_per_second) == (NEW, 505.0)
    assert [past.created_at for past in kept.history] == [OLD]
    assert remarks == (
        "cpu-4c-0a1b2c3d: 500/s in 1.json, 505/s in 0.json, no difference beyond noise; the newer one is taken",
    )


def test_equal_machines_that_differ_beyond_noise_are_told() -> None:
    _, (remark,) = merge(make_tuned(created_at=OLD), make_tuned(created_at=NEW, rate=300.0))
    assert "they differ beyond noise" in remark


def test_one_result_in_two_files_is_one() -> None:
    assert merge(make_tuned(), make_tuned()) == ([make_tuned()], ())


def test_a_name_that_was_given_on_two_machines_is_told_apart_by_the_machine() -> None:
    found, remarks = merge(make_tuned("imagenet", 4.0, created_at=OLD), make_tuned("imagenet", 8.0, created_at=NEW))
    assert [profile.name for profile in found] == ["imagenet", "imagenet-cpu-8c-16g"]
    assert remarks == ("imagenet of 1.json is now imagenet-cpu-8c-16g: another profile has that name",)


def test_names_given_by_hand_keep_results_for_one_machine_apart() -> None:
    found, _ = merge(make_tuned("before", created_at=OLD), make_tuned("after", created_at=NEW))
    assert [profile.name for profile in found] == ["before", "after"]

"""A result in words, as the terminal shows it."""

from __future__ import annotations

from datetime import UTC, datetime

from autotune.config import ProcessSettings
from autotune.profiles.nodes import NodeReading, NodeSpread
from autotune.profiles.schema import BatchSizeResult
from autotune.report.text import describe_profile, describe_warnings, warnings_of
from autotune.report.usage import describe_use_in_code
from autotune.system.hardware import Accelerator
from tests.builders import (
    make_ablation,
    make_config,
    make_full_profile,
    make_hardware,
    make_machine,
    make_profile,
    make_profile_result,
)

FILE_SYSTEM = ProcessSettings(sharing_strategy="file_system")


def test_settings_that_change_training_come_with_the_option_that_pins_them() -> None:
    rows = tuple(
        BatchSizeResult(batch_size=size, config=make_config(4, 2, size), samples_per_second=rate)
        for size, rate in ((32, 900.0), (64, 1800.0))
    )
    profile = make_profile(
        dataloader=make_config(4, 2, 64, in_order=False).dataloader,
        result=make_profile_result(by_batch_size=rows, warnings=("the samples differ in size",)),
    )
    text = "\n".join(describe_warnings(profile))
    assert "the samples differ in size" in text
    assert "--batch-size" in text
    assert "900/s at 32, 1,800/s at 64" in text
    assert "--fix in_order=true" in text


def test_an_answer_that_changes_nothing_about_training_has_no_caveats() -> None:
    assert describe_warnings(make_profile()) == []


def test_a_saved_profile_is_shown_with_where_and_how_it_was_found() -> None:
    hardware = make_machine().hardware(Accelerator(name="NVIDIA H100", count=2))
    text = describe_profile(make_profile("h100x2", hardware=hardware))
    assert "h100x2   pkg.data:make_dataset   2026-01-02 03:04 UTC" in text
    assert "2x NVIDIA H100   4 CPUs   RAM 16.0 GiB   /dev/shm 8.0 GiB   torch 2.13.0   Python 3.11.7" in text
    assert "20 trials (17 ok, 1 infeasible, 2 skipped) in 1m35: all 20 trials done" in text


def test_an_answer_that_copies_ahead_comes_with_the_call_that_does() -> None:
    process = ProcessSettings(non_blocking=True, device_prefetch=True)
    profile = make_profile(process=process, hardware=make_hardware(gpu="NVIDIA H100", gpu_count=1))
    used = describe_use_in_code(profile, "map", "dltune.json")
    assert used == 'autotune.device_prefetch(autotune.load("dltune.json").make_loader(dataset, shuffle=True), device)'
    assert any("non_blocking=True" in note for note in warnings_of(profile))


def test_what_each_setting_gave_comes_with_its_interval_and_noise_is_called_so() -> None:
    steps = make_ablation()
    unclear = steps[1].model_copy(update={"speedup": 1.01, "speedup_ci95": (0.95, 1.07)})
    profile = make_profile(result=make_profile_result(ablation=(steps[0], unclear)))
    (line,) = [line for line in describe_warnings(profile) if "each setting gave" in line]
    assert "num_workers=4 1.50x [1.41-1.59]" in line
    assert "batch_size=64 1.01x [0.95-1.07] (within noise)" in line


def test_a_setting_that_left_its_convention_is_told_with_what_it_gained() -> None:
    notes = warnings_of(make_full_profile())
    assert any("batch_size=64 pays: 1.20x [1.10-1.30] over the usual setting" in note for note in notes)


def test_how_far_equal_machines_differ_is_told() -> None:
    now = datetime(2026, 6, 1, tzinfo=UTC)
    readings = tuple(
        NodeReading(node=name, samples_per_second=rate, created_at=now) for name, rate in (("a", 1700.0), ("b", 1900.0))
    )
    nodes = NodeSpread(readings=readings, samples_per_second_ci95=(1500.0, 2100.0))
    words = "measured again on 2 machines like it: 1,700-1,900 samples/s; another is expected at 1,500-2,100"
    assert words in describe_profile(make_profile().model_copy(update={"nodes": nodes}))

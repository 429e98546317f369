"""What becomes of datasets that deliver the wrong number of samples, or what cannot be made a batch."""

from __future__ import annotations

from typing import Any

import pytest

from tests.faults.stage import LIMITS, Play, Scene, probe, read_all, refuse, run, run_cli


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.fault("StopIteration in map dataset", needs="plain")
def test_a_trial_that_ended_early_never_counts(workers: int) -> None:
    arguments = {"deed": "stop", "place": "both"}
    result = run("faults.hostile:make_sabotaged", arguments=arguments, play=Play(workers=workers))
    assert result.kind == "workload_failed"
    assert "ended an epoch after 2 of" in result.message
    assert "A StopIteration raised inside __getitem__" in result.message


@pytest.mark.fault("StopIteration in map dataset", needs="plain")
def test_a_dataset_that_ends_early_is_refused_by_the_run() -> None:
    finished = run_cli("misbehaving:make_ends_early", "--trials", "3")
    assert finished.returncode == 2, finished.stderr
    assert "StopIteration" in finished.stderr
    assert finished.stdout == ""


@pytest.mark.fault("`__getitems__` of the wrong length", needs="plain")
def test_half_batches_never_count_as_whole_ones() -> None:
    result = run("faults.hostile:make_short_queries")
    assert result.kind == "workload_failed"
    assert "delivered 32 samples where 64 were requested" in result.message
    assert "__getitems__ must return one sample for each index" in result.message


@pytest.mark.fault("`__getitems__` of the wrong length", needs="plain")
def test_a_dataset_that_answers_half_its_queries_is_refused_by_the_probe_whatever_its_collate() -> None:
    assert "returned 4 samples for 8 indices" in str(refuse("faults.hostile:make_short_queries_collated"))


@pytest.mark.fault("Iterable that is not sharded", needs="plain")
def test_data_that_every_worker_delivers_is_found_out_even_in_random_order() -> None:
    assert probe("faults.hostile:make_shuffled_unsharded").workers_duplicate_data


@pytest.mark.parametrize("factory", ["misbehaving:make_unsharded", "faults.hostile:make_shuffled_unsharded"])
@pytest.mark.fault("Iterable that is not sharded", needs="plain")
def test_a_trial_that_counts_the_same_data_twice_never_counts(factory: str) -> None:
    with Scene(factory=factory).open_runner() as runner:
        runner.probe((8, 8), LIMITS)
        result = runner.run(Play(workers=3).to_request())
    assert result.kind == "workload_failed", result.message
    assert "samples of a dataset of 64: each of its workers returns all the data" in result.message
    assert "get_worker_info()" in result.message


@pytest.mark.fault("Iterable that is not sharded", needs="plain")
def test_a_run_over_unsharded_data_stays_below_two_workers_and_says_why() -> None:
    finished = run_cli("faults.hostile:make_shuffled_unsharded", "--max-workers", "4", "--dry-run", "-v")
    assert finished.returncode == 0, finished.stderr
    assert "num_workers is at most 1: without sharding by get_worker_info()" in " ".join(finished.stderr.split())
    assert "num_workers=0" in finished.stdout
    assert "num_workers=2" not in finished.stdout


@pytest.mark.fault("Epoch that ends early", needs="plain")
def test_workers_whose_shares_leave_data_out_never_count() -> None:
    with Scene(factory="faults.hostile:make_sharded_twice").open_runner() as runner:
        runner.probe((8, 8), LIMITS)
        result = runner.run(Play(workers=2).to_request())
    assert result.kind == "workload_failed", result.message
    assert "delivered 32 samples of a dataset of 64" in result.message
    assert "leave some out" in result.message


@pytest.mark.fault("Epoch that ends early", needs="plain")
def test_an_iterator_that_is_used_up_after_one_epoch_never_counts() -> None:
    result = run("faults.hostile:make_only_once", play=Play(workers=0))
    assert result.kind == "workload_failed", result.message
    assert "ended epoch 2 after 0 batches, and one before it had 8" in result.message
    assert "start again in every __iter__" in result.message


@pytest.mark.fault("Epoch that ends early", needs="plain")
def test_a_dataset_that_can_be_gone_through_only_once_is_refused_by_the_probe() -> None:
    assert "start again in every __iter__" in str(refuse("faults.hostile:make_only_once"))


@pytest.mark.fault("Batch needs grad", needs="plain")
def test_samples_that_need_a_gradient_fail_with_workers_only_and_are_told_to_be_detached() -> None:
    with Scene(factory="faults.hostile:make_given", arguments={"samples": "grad"}).open_runner() as runner:
        alone = runner.run(Play(workers=0).to_request())
        together = runner.run(Play(workers=2).to_request())
    assert (alone.kind, together.kind) == ("completed", "workload_failed")
    assert "automatic differentiation" in together.message
    assert "sample.detach()" in together.message


@pytest.mark.parametrize(
    ("samples", "words"),
    [("ragged", "stack expects each tensor to be equal size"), ("none", "NoneType"), ("object", "class 'object'")],
)
@pytest.mark.fault("Ragged / None / object", needs="plain")
def test_samples_that_make_no_batch_are_refused_with_a_hint_at_collate(samples: str, words: str) -> None:
    error = refuse("faults.hostile:make_given", arguments={"samples": samples})
    assert words in str(error)
    assert "--collate PKG.MOD:FUNCTION" in str(error)
    assert "collate.py" in read_all(error)


@pytest.mark.fault("Ragged / None / object", needs="plain")
def test_samples_that_make_no_batch_in_a_worker_are_named_with_a_hint_at_collate() -> None:
    result = run("faults.hostile:make_given", arguments={"samples": "ragged"})
    assert result.kind == "workload_failed"
    assert "--collate PKG.MOD:FUNCTION" in result.message


@pytest.mark.parametrize(
    ("factory", "words"),
    [
        ("misbehaving:make_empty", "of length 0: there is nothing to load"),
        ("faults.hostile:make_nothing", "delivered no batch at all"),
    ],
)
@pytest.mark.fault("Empty / 0 batches / infinite iterable", needs="plain")
def test_a_dataset_without_a_batch_is_refused(factory: str, words: str) -> None:
    assert words in str(refuse(factory))


@pytest.mark.parametrize(("factory", "workers"), [("make_nothing", 2), ("make_dropped", 0)])
@pytest.mark.fault("Empty / 0 batches / infinite iterable", needs="plain")
def test_a_trial_without_a_batch_never_counts(factory: str, workers: int) -> None:
    result = run(f"faults.hostile:{factory}", play=Play(workers=workers))
    assert result.kind == "workload_failed", result.message
    assert "delivered no batch at all" in result.message


@pytest.mark.fault("Empty / 0 batches / infinite iterable", needs="plain")
def test_a_dataset_without_an_end_is_measured_for_as_long_as_a_trial_may_take() -> None:
    with Scene(factory="faults.hostile:make_endless").open_runner() as runner:
        profile: Any = runner.probe((8, 8), LIMITS)
        result = runner.run(Play(seconds=0.5).to_request())
    assert (profile.samples, profile.workers_duplicate_data) == (None, False)
    assert result.kind == "completed", result.message
    assert result.measurement is not None
    assert result.measurement.epoch_batches is None

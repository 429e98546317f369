"""What a trial counts, measured in this process."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import IterableDataset, TensorDataset

from autotune.loaders import LoadedWorkload
from autotune.measure import TrialMeasurement
from autotune.messages import Measurement, TrialRequest
from autotune.workload import Workload
from tests.builders import make_config

pytestmark = pytest.mark.usefixtures("leaves_nothing")
CPU = torch.device("cpu")


def measure(workload: Workload, workers: int, batch_size: int | None = 10, **request: Any) -> Measurement:
    """Measure with a step that takes a while, so that an epoch of many batches does not fit."""
    loaded = LoadedWorkload(parts=workload)
    usual: dict[str, Any] = {"epochs": 2, "seconds": 1.0}
    order = TrialRequest(config=make_config(workers, batch_size=batch_size), **usual | request)
    return TrialMeasurement(loaded, lambda batch: time.sleep(5e-3), CPU, order, lambda batches: None).run()


class Count(IterableDataset[torch.Tensor]):
    def __iter__(self) -> Iterator[torch.Tensor]:
        return (torch.zeros(1) for _ in range(35))


@pytest.mark.parametrize("workers", [0, 2])
def test_an_epoch_cut_short_ends_on_a_batch_as_short_as_a_whole_epoch_does(workers: int) -> None:
    found = measure(Workload(dataset=TensorDataset(torch.zeros(10_004, 1))), workers)
    assert (found.epoch_batches, found.epoch_samples) == (1001, 10_004)
    assert all(trace.closed_after is not None for trace in found.epochs)
    assert [trace.samples % 10 for trace in found.epochs] == [4] * len(found.epochs)
    assert [-(-trace.samples // 10) for trace in found.epochs] == [trace.batches for trace in found.epochs]


@pytest.mark.parametrize(("samples", "drop_last"), [(10_000, False), (10_004, True)])
def test_an_epoch_cut_short_of_full_batches_has_full_batches_only(samples: int, drop_last: bool) -> None:
    found = measure(Workload(dataset=TensorDataset(torch.zeros(samples, 1)), drop_last=drop_last), 0)
    assert found.epoch_samples == 10_000
    assert [trace.samples for trace in found.epochs] == [10 * trace.batches for trace in found.epochs]


@pytest.mark.parametrize(
    ("workload", "batch_size"),
    [
        (Workload(dataset=Count()), 10),
        (Workload(dataset=TensorDataset(torch.zeros(35, 1)), batch_sampler=[list(range(20)), list(range(15))]), None),
    ],
)
def test_an_epoch_that_was_run_whole_tells_its_number_of_samples(workload: Workload, batch_size: int | None) -> None:
    assert measure(workload, 0, batch_size, seconds=5.0).epoch_samples == 35


def test_the_samples_of_an_epoch_that_nobody_knows_stay_unknown() -> None:
    batches = [[index] * (1 + index % 2) for index in range(2000)]
    found = measure(Workload(dataset=TensorDataset(torch.zeros(2000, 1)), batch_sampler=batches), 0, None)
    assert (found.epoch_batches, found.epoch_samples) == (2000, None)

"""Epochs whose workers change: the batches stay those of the plain loader, in their order."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler, get_worker_info

from autotune.online.epoch import Epoch, EpochIterator, WorkerSettings
from autotune.online.worker import WorkerCounters

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")  # the loaders of the tests
SAMPLES = 120


class Squares(Dataset[tuple[int, torch.Tensor]]):
    """Samples with a random augmentation; loading some takes longer."""

    def __init__(self, slow: bool = False, bad: int | None = None, bad_worker: int | None = None) -> None:
        self._slow, self._bad, self._bad_worker = slow, bad, bad_worker

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[int, torch.Tensor]:
        if index == self._bad:
            raise ValueError(f"sample {index} is broken")
        info = get_worker_info()
        if info is not None and self._bad_worker is not None and info.id >= self._bad_worker:
            raise OSError(f"worker {info.id} cannot read")
        if self._slow and index % 7 == 0:
            time.sleep(0.004)
        return index, torch.rand(2)


def seeded(number: int = 1) -> torch.Generator:
    return torch.Generator().manual_seed(number)


LOADERS: dict[str, dict[str, Any]] = {
    "shuffled": {"batch_size": 8, "shuffle": True},
    "shuffled by a generator of its own": {"batch_size": 8, "shuffle": True, "generator": seeded()},
    "without the last batch": {"batch_size": 7, "shuffle": True, "drop_last": True},
    "in order": {"batch_size": 8},
    "samples instead of batches": {"batch_size": None},
    "batches of its own sampler": {"batch_sampler": BatchSampler(RandomSampler(range(SAMPLES)), 8, False)},
}


def make_loader(workers: int, name: str = "shuffled", dataset: Squares | None = None, **more: Any) -> DataLoader[Any]:
    kwargs = dict(LOADERS[name])
    if "generator" in kwargs:
        kwargs["generator"] = seeded()
    return DataLoader(dataset or Squares(), num_workers=workers, **kwargs, **more)


def own_settings(loader: DataLoader[Any]) -> WorkerSettings:
    return WorkerSettings(loader.num_workers, loader.prefetch_factor or 2)


def make_epoch(loader: DataLoader[Any], settings: WorkerSettings | None = None) -> Epoch:
    own = own_settings(loader)
    return Epoch(loader, settings or own, own, WorkerCounters())


def iterate(epoch: Epoch, change: Callable[[Epoch], object] = id) -> EpochIterator:
    return EpochIterator(epoch, change, lambda epoch, is_whole: None)


def run(
    loader: DataLoader[Any], settings: WorkerSettings | None = None, changes: random.Random | None = None
) -> tuple[list[Any], Epoch]:
    """Iterate over one epoch; with `changes`, the workers change at random batches."""
    epoch = make_epoch(loader, settings)

    def change(epoch: Epoch) -> None:
        if changes is not None and changes.random() < 0.3:
            epoch.change(WorkerSettings(changes.randint(1, 5), changes.randint(1, 4)))

    return list(iterate(epoch, change)), epoch


def flatten(batches: list[Any]) -> list[float]:
    return [
        float(value)
        for indices, numbers in batches
        for value in (*torch.as_tensor(indices).flatten(), *numbers.flatten())
    ]


def indices_of(batches: list[Any]) -> list[list[int]]:
    return [torch.as_tensor(indices).flatten().tolist() for indices, _ in batches]


def test_loading_without_workers_draws_nothing_from_the_states_of_a_training_with_workers() -> None:
    torch.manual_seed(5)
    plain = [indices_of(list(make_loader(2))) for _ in range(2)]
    state = torch.get_rng_state()
    torch.manual_seed(5)
    found = [indices_of(run(make_loader(2), WorkerSettings(0, 2))[0]) for _ in range(2)]
    assert (found, torch.equal(torch.get_rng_state(), state)) == (plain, True)


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("name", LOADERS)
def test_an_unchanged_epoch_is_bit_identical_to_that_of_the_plain_loader(name: str, workers: int) -> None:
    torch.manual_seed(5)
    plain_loader = make_loader(workers, name)
    plain = [flatten(list(map(list, plain_loader))) for _ in range(2)]
    plain_state = torch.get_rng_state()
    torch.manual_seed(5)
    loader = make_loader(workers, name)
    assert [flatten(run(loader)[0]) for _ in range(2)] == plain
    assert torch.equal(torch.get_rng_state(), plain_state)


@pytest.mark.parametrize("seed", range(6))
def test_the_order_stays_whatever_workers_come_and_go(seed: int) -> None:
    torch.manual_seed(seed)
    expected = [indices_of(list(make_loader(2, dataset=Squares(slow=True))))]
    torch.manual_seed(seed)
    found, epoch = run(make_loader(2, dataset=Squares(slow=True)), changes=random.Random(seed))
    assert [indices_of(found)] == expected
    assert epoch.started_workers > 2


def test_a_loader_without_workers_gets_some_and_loses_them_again() -> None:
    torch.manual_seed(3)
    expected = indices_of(list(make_loader(0)))
    torch.manual_seed(3)
    loader = make_loader(0)
    plans: Iterator[tuple[int, int]] = iter([(0, 2), (3, 2), (3, 2), (3, 2), (0, 2), (0, 2), (2, 1)] * 3)

    def change(epoch: Epoch) -> None:
        epoch.change(WorkerSettings(*next(plans, (1, 2))))

    epoch = make_epoch(loader, WorkerSettings(1, 2))
    assert indices_of(list(iterate(epoch, change))) == expected


def wait_until(is_true: Callable[[], bool], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not is_true() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert is_true()


def list_children() -> list[str]:
    return Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()


def test_a_loop_that_ends_early_leaves_no_worker() -> None:
    before = list_children()
    for position, _ in enumerate(iterate(make_epoch(make_loader(2)))):
        if position == 3:
            break
    wait_until(lambda: not set(list_children()) - set(before))


@pytest.mark.parametrize("settings", [WorkerSettings(2, 2), WorkerSettings(5, 1)], ids=["own", "other workers"])
def test_an_error_of_the_dataset_arrives_at_the_same_batch(settings: WorkerSettings) -> None:
    loader = make_loader(2, "in order", Squares(bad=37))
    batches = iterate(make_epoch(loader, settings))
    assert [next(batches)[0][0].item() for _ in range(4)] == [0, 8, 16, 24]
    with pytest.raises(ValueError, match="sample 37 is broken"):
        next(batches)
    assert next(batches)[0][0].item() == 40


@pytest.mark.parametrize("own", [0, 2])
def test_the_batches_of_added_workers_that_fail_are_loaded_by_the_own_settings(own: int) -> None:
    loader = make_loader(own, "in order", Squares(bad_worker=own))
    changed = []

    def change(epoch: Epoch) -> None:
        if epoch.delivered == 2:
            changed.append(epoch.change(WorkerSettings(4, 2)))

    epoch = make_epoch(loader)
    batches = list(iterate(epoch, change))
    assert indices_of(batches) == indices_of(list(make_loader(0, "in order")))
    assert changed == [True]
    assert epoch.failure.startswith("OSError: Caught OSError in DataLoader worker")


def fail_in_init(worker: int) -> None:
    if worker >= 2:
        raise RuntimeError("no licence for another worker")


def test_a_worker_init_fn_that_fails_in_added_workers_does_not_end_the_training() -> None:
    loader = make_loader(2, "in order", worker_init_fn=fail_in_init)
    epoch = make_epoch(loader)
    batches = list(iterate(epoch, lambda epoch: epoch.change(WorkerSettings(4, 2))))
    assert indices_of(batches) == indices_of(list(make_loader(0, "in order")))
    assert "no licence" in epoch.failure or "RuntimeError" in epoch.failure


def test_added_workers_that_are_killed_do_not_end_the_training() -> None:
    loader = make_loader(1, "in order", Squares(slow=True))
    before = set(list_children())
    epoch = make_epoch(loader)

    def change(epoch: Epoch) -> None:
        if epoch.delivered == 1:
            own = set(list_children()) - before
            epoch.change(WorkerSettings(3, 2))
            for pid in set(list_children()) - before - own:
                os.kill(int(pid), signal.SIGKILL)

    assert indices_of(list(iterate(epoch, change))) == indices_of(list(make_loader(0, "in order")))
    assert "exited unexpectedly" in epoch.failure

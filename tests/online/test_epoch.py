"""Epochs whose workers change: the batches stay those of the plain loader, in their order."""

from __future__ import annotations

import gc
import itertools
import os
import pickle
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler, Sampler, get_worker_info

from autotune.online.attach import autopilot
from autotune.online.epoch import Epoch, EpochIterator
from autotune.online.group import WorkerSettings
from autotune.online.limits import WorkerLimits
from autotune.online.worker import TimedIndices, WorkerCounters

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")  # the loaders of the tests
SAMPLES, MORE = 120, WorkerSettings(2, 2)


class Squares(Dataset[tuple[int, torch.Tensor]]):
    """Samples with random augmentations; loading some takes longer."""

    def __init__(
        self,
        slow: bool = False,
        bad: int | None = None,
        generator: torch.Generator | None = None,
        pause: float = 0.0,
    ) -> None:
        self._slow, self._bad, self._generator, self._pause = slow, bad, generator, pause

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[int, torch.Tensor]:
        if index == self._bad:
            raise ValueError(f"sample {index} is broken")
        if self._slow and index % 7 == 0:
            time.sleep(0.004)
        time.sleep(self._pause)
        drawn = torch.rand(2, generator=self._generator).tolist()
        return index, torch.tensor([*drawn, random.random(), np.random.rand()], dtype=torch.float64)


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
    return Epoch(loader, settings or own, own, WorkerCounters(), WorkerLimits())


def iterate(epoch: Epoch, change: Callable[[Epoch], object] = id) -> EpochIterator:
    return EpochIterator(epoch, change, lambda epoch: None)


def run(
    loader: DataLoader[Any], settings: WorkerSettings | None = None, changes: random.Random | None = None
) -> tuple[list[Any], Epoch]:
    """Iterate over one epoch; with `changes`, the workers change at random batches."""
    epoch = make_epoch(loader, settings)

    def change(epoch: Epoch) -> None:
        if changes is not None and changes.random() < 0.6:
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


def test_batches_that_are_loaded_without_workers_have_augmentations_of_their_own() -> None:
    torch.manual_seed(5)
    batches, _ = run(make_loader(2), WorkerSettings(0, 2))
    drawn = [tuple(numbers.tolist()) for _, of_batch in batches for numbers in of_batch]
    assert [len({row[column] for row in drawn}) for column in (0, 2, 3)] == [SAMPLES] * 3


def test_the_sampler_is_drawn_from_when_a_plain_loader_with_workers_would_draw() -> None:
    orders = []
    for settings in (None, WorkerSettings(0, 2)):
        torch.manual_seed(3)
        loader = make_loader(2)
        iterator = iterate(make_epoch(loader, settings)) if settings else iter(loader)
        torch.rand(1)
        orders.append(indices_of(list(iterator)))
    assert orders[0] == orders[1]


def test_indices_that_are_a_part_of_a_tensor_are_sent_without_the_rest_of_it() -> None:
    order = torch.arange(100_000)
    for part in (order[5:8], list(order[5:8]), {"rows": order[5:8]}):
        sent = pickle.dumps(TimedIndices(part))
        assert len(sent) < 2000
        assert str(pickle.loads(sent)) == str(part)


def test_workers_that_are_asked_for_before_the_first_batch_come_after_it() -> None:
    plain, _ = run(make_loader(2, "in order"))
    epoch, made = make_epoch(make_loader(2, "in order"), WorkerSettings(0, 2)), list[bool]()

    def add_workers(epoch: Epoch) -> None:
        if not epoch.settings.workers:
            made.append(epoch.change(MORE))

    found = list(iterate(epoch, add_workers))
    assert made == [False, True]
    assert indices_of(found) == indices_of(plain)
    assert (epoch.failure, epoch.settings) == ("", MORE)


class OwnIndexSampler(DataLoader[Any]):
    @property
    def _index_sampler(self) -> Any:
        return [[0, 1], [2, 3]]


def test_a_subclass_may_have_an_index_sampler_of_its_own() -> None:
    batches, _ = run(OwnIndexSampler(Squares(), 8))
    assert indices_of(batches) == [[0, 1], [2, 3]]


def test_the_users_own_persistent_workers_stay_though_none_could_be_added() -> None:
    loader = make_loader(1, persistent_workers=True)
    epoch = make_epoch(loader)
    epoch.failure = "workers would share a file"
    list(iterate(epoch))
    (group,) = epoch.kept
    assert group.is_own
    group.end()


def test_an_iterator_has_the_length_of_the_loader() -> None:
    assert len(iterate(make_epoch(make_loader(0)))) == SAMPLES // 8


def test_objects_that_the_training_froze_stay_frozen() -> None:
    frozen = [object()]
    gc.freeze()
    try:
        run(make_loader(1))
        assert all(one is not frozen for one in gc.get_objects())  # which has none that is frozen
    finally:
        gc.unfreeze()


def test_starting_workers_freezes_nothing_in_the_training_process() -> None:
    before = gc.get_freeze_count()  # of some versions of Python
    run(make_loader(1), WorkerSettings(2, 2))
    assert (gc.get_freeze_count(), gc.isenabled()) == (before, True)


def read_states(loader: DataLoader[Any]) -> list[Any]:
    """Return the states of all generators that an epoch may use."""
    own = [] if loader.generator is None else loader.generator.get_state().tolist()
    return [own, torch.get_rng_state().tolist(), random.getstate(), np.random.get_state()[1].tolist()]  # type: ignore[index]


@pytest.mark.parametrize("persistent", [False, True], ids=["new workers", "persistent workers"])
@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("name", LOADERS)
def test_two_unchanged_epochs_are_bit_identical_to_those_of_the_plain_loader(
    name: str, workers: int, persistent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("autotune.online.windows.WINDOW_SECONDS", 1e9)  # it changes nothing
    found = []
    for is_tuned in (False, True):
        torch.manual_seed(5)
        random.seed(5)
        np.random.seed(5)
        loader = make_loader(workers, name, persistent_workers=persistent)
        if is_tuned:
            autopilot(loader, None, quiet=True)
        epochs = [(flatten(list(map(list, loader))), read_states(loader)) for _ in range(2)]
        found.append(epochs)
    assert found[0] == found[1]


@pytest.mark.parametrize("lead", [0, 3])
@pytest.mark.parametrize("seed", range(6))
def test_the_order_stays_whatever_workers_come_and_go(seed: int, lead: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autotune.online.epoch.MAX_LEAD", lead)
    torch.manual_seed(seed)
    expected = [indices_of(list(make_loader(2, dataset=Squares(slow=True))))]
    torch.manual_seed(seed)
    found, epoch = run(make_loader(2, dataset=Squares(slow=True)), changes=random.Random(seed))
    assert [indices_of(found)] == expected
    assert epoch.started_workers > 2


def test_another_prefetch_factor_keeps_the_workers_the_order_and_the_next_epoch() -> None:
    torch.manual_seed(3)
    plain = make_loader(2, persistent_workers=True)
    orders = [indices_of(list(plain)) for _ in range(2)]
    torch.manual_seed(3)
    loader, under_way = make_loader(2, persistent_workers=True), list[int]()

    def change(epoch: Epoch) -> None:
        under_way.append(epoch.drawn - epoch.delivered)
        epoch.change(WorkerSettings(2, 4 if epoch.delivered < 3 else 1))

    epoch = make_epoch(loader)
    found = [indices_of(list(iterate(epoch, change)))]
    assert under_way[:10] == [4, 8, 8, 8, 7, 6, 5, 4, 3, 2]
    own = own_settings(loader)
    later = Epoch(loader, WorkerSettings(2, 1), own, WorkerCounters(), WorkerLimits(), epoch.kept, epoch.seeds)
    assert later.drawn == 2
    found.append(indices_of(list(iterate(later))))
    assert found == orders
    assert epoch.started_workers == later.started_workers == 2
    for group in later.kept:
        group.end()


def test_fewer_workers_and_more_again_are_those_of_the_start() -> None:
    torch.manual_seed(3)
    plain = make_loader(4, persistent_workers=True)
    orders = [indices_of(list(plain)) for _ in range(2)]
    torch.manual_seed(3)
    loader, under_way = make_loader(4, persistent_workers=True), list[int]()

    def change(epoch: Epoch) -> None:
        epoch.change(WorkerSettings(1 if epoch.delivered < 6 else 3, 2))
        under_way.append(epoch.drawn - epoch.delivered)

    epoch = make_epoch(loader)
    found = [indices_of(list(iterate(epoch, change)))]
    assert under_way[:8] == [8, 7, 6, 5, 4, 3, 6, 6]
    own = own_settings(loader)
    later = Epoch(loader, own, own, WorkerCounters(), WorkerLimits(), epoch.kept, epoch.seeds)
    assert later.drawn == 6
    found.append(indices_of(list(iterate(later))))
    assert found == orders
    assert epoch.started_workers == later.started_workers == 4
    for group in later.kept:
        group.end()


class WorkerIds(Dataset[int]):
    """Samples that are the id of the worker that loads them."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> int:
        info = get_worker_info()
        return -1 if info is None else info.id


def test_idle_workers_get_the_next_batches_when_they_are_used_again() -> None:
    epoch = make_epoch(DataLoader(WorkerIds(), batch_size=None, num_workers=4))

    def change(epoch: Epoch) -> None:
        if epoch.delivered in (4, 14):
            epoch.change(WorkerSettings(1 if epoch.delivered == 4 else 4, 2))

    assert list(iterate(epoch, change))[10:26] == [2, 3, 0, 0, 0, 0, 1, 2, 3, 1, 2, 3, 0, 1, 2, 3]


def test_workers_that_would_start_after_the_end_of_an_epoch_start_in_the_next_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("autotune.online.epoch.MAX_LEAD", 0)
    torch.manual_seed(3)
    plain = make_loader(2, persistent_workers=True)
    orders = [indices_of(list(plain)) for _ in range(2)]
    torch.manual_seed(3)
    loader, results = make_loader(2, persistent_workers=True), list[bool]()

    def change(epoch: Epoch) -> None:
        if epoch.delivered > 11:
            results.append(epoch.change(WorkerSettings(5, 1)))

    epoch = make_epoch(loader)
    found = [indices_of(list(iterate(epoch, change)))]
    assert results == [False] * 4
    own = own_settings(loader)
    epoch = Epoch(loader, WorkerSettings(5, 1), own, WorkerCounters(), WorkerLimits(), epoch.kept, epoch.seeds)
    found.append(indices_of(list(iterate(epoch, lambda one: one.delivered == 4 and one.change(WorkerSettings(5, 1))))))
    assert found == orders
    assert epoch.started_workers == 5
    for group in epoch.kept:
        group.end()


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


@pytest.mark.parametrize("own", [0, 1])
def test_two_seeded_loaders_that_are_iterated_together_keep_their_orders(own: int) -> None:
    def read(make_batches: Callable[[DataLoader[Any]], Any]) -> list[Any]:
        torch.manual_seed(3)
        samples: Any = range(SAMPLES)
        loaders = [DataLoader(samples, 8, shuffle=True, num_workers=own) for _ in range(2)]
        pairs = zip(*map(make_batches, loaders), strict=True)
        return [[batch.tolist() for batch in pair] for pair in pairs]

    assert read(lambda loader: iterate(make_epoch(loader, WorkerSettings(2, 2)))) == read(iter)


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
    assert [indices[0].item() for indices, _ in batches] == list(range(40, SAMPLES, 8))


class Interrupted(Squares):
    """The first load of one sample waits until a flag is set, or is interrupted by Ctrl-C."""

    def __init__(self, index: int, flag: torch.Tensor | None = None) -> None:
        super().__init__()
        self._index: int | None = index
        self._flag = flag

    def __getitem__(self, index: int) -> tuple[int, torch.Tensor]:
        if index == self._index:
            self._index = None
            if self._flag is None:
                raise KeyboardInterrupt
            while not self._flag:
                time.sleep(0.01)
        return super().__getitem__(index)


@pytest.mark.parametrize("settings", [WorkerSettings(1, 2), WorkerSettings(2, 2)], ids=["own", "other workers"])
def test_a_timeout_that_the_training_catches_loses_no_batch(settings: WorkerSettings) -> None:
    has_timed_out = torch.zeros(1).share_memory_()
    loader = make_loader(1, "in order", Interrupted(18, has_timed_out), timeout=2)
    batches, firsts, timeouts = iterate(make_epoch(loader, settings)), list[int](), 0
    while len(firsts) < SAMPLES // 8:
        try:
            firsts.append(next(batches)[0][0].item())
        except RuntimeError:
            timeouts += 1
            has_timed_out.fill_(1)
    assert firsts == list(range(0, SAMPLES, 8))
    assert next(batches, None) is None
    assert timeouts == 1


@pytest.mark.parametrize(("workers", "settings"), [(0, None), (1, WorkerSettings(0, 2))], ids=["own", "other"])
def test_an_interrupt_ends_one_batch_that_is_loaded_without_workers(
    workers: int, settings: WorkerSettings | None
) -> None:
    batches = iterate(make_epoch(make_loader(workers, "in order", Interrupted(18)), settings))
    assert [next(batches)[0][0].item() for _ in range(2)] == [0, 8]
    with pytest.raises(KeyboardInterrupt):
        next(batches)
    assert [indices[0].item() for indices, _ in batches] == list(range(24, SAMPLES, 8))


class Counting(Sampler[int]):
    """Its order depends on how often it was iterated over, and on the default generator."""

    calls = 0

    def __iter__(self) -> Iterator[int]:
        self.calls += 1
        return iter([(one + self.calls) % SAMPLES for one in torch.randperm(SAMPLES).tolist()])


@pytest.mark.parametrize(("own", "persistent"), [(0, False), (2, False), (2, True)])
def test_the_order_of_later_epochs_stays_if_workers_change(own: int, persistent: bool) -> None:
    orders = []
    for is_changed in (False, True):
        torch.manual_seed(3)
        dataset = Squares(generator=seeded())
        loader = DataLoader(dataset, 8, sampler=Counting(), num_workers=own, persistent_workers=persistent)
        seeds, epochs = None, []
        for number in range(4):
            if is_changed:
                settings = WorkerSettings(*((4, 1), (1, 2))[number % 2])
                epoch = Epoch(loader, settings, own_settings(loader), WorkerCounters(), WorkerLimits(), (), seeds)
                epochs.append(indices_of(list(iterate(epoch))))
                seeds = epoch.seeds if persistent else None
                for group in epoch.kept:
                    group.end()
            else:
                epochs.append(indices_of(list(loader)))
        orders.append(epochs)
    assert orders[0] == orders[1]


def test_all_groups_of_persistent_workers_stay_for_the_next_epoch() -> None:
    torch.manual_seed(3)
    plain = make_loader(2, persistent_workers=True)
    orders = [indices_of(list(plain)) for _ in range(3)]
    torch.manual_seed(3)
    loader = make_loader(2, persistent_workers=True)
    own = own_settings(loader)
    epoch = make_epoch(loader)
    found = [indices_of(list(iterate(epoch, lambda one: one.delivered == 4 and one.change(WorkerSettings(5, 2)))))]
    workers = [worker.pid for group in epoch.kept for worker in group.iterator._workers]
    for _ in range(2):
        epoch = Epoch(loader, WorkerSettings(5, 2), own, WorkerCounters(), WorkerLimits(), epoch.kept, epoch.seeds)
        found.append(indices_of(list(iterate(epoch))))
    assert found == orders
    assert [worker.pid for group in epoch.kept for worker in group.iterator._workers] == workers
    assert len(workers) == 5
    for group in epoch.kept:
        group.end()


def run_two_epochs(dataset: Squares, between: Callable[[Epoch], object]) -> tuple[list[int], str]:
    """Leave an epoch with an added persistent worker early; return the next one's first indices, and its failure."""
    loader = make_loader(1, "in order", dataset, persistent_workers=True)
    epoch = make_epoch(loader)
    batches = iterate(epoch, lambda one: one.delivered == 2 and one.change(WorkerSettings(2, 2)))
    for _ in range(7):
        next(batches)
    del batches
    between(epoch)
    again = Epoch(loader, WorkerSettings(2, 2), own_settings(loader), WorkerCounters(), WorkerLimits(), epoch.kept)
    found = [indices[0] for indices in indices_of(list(iterate(again)))]
    for group in again.kept:
        group.end()
    return found, again.failure


def test_added_persistent_workers_that_still_load_at_the_end_of_an_epoch_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autotune.online.epoch.POLL_SECONDS", 0.05)
    found, failure = run_two_epochs(Squares(pause=0.05), id)
    assert (found, failure) == (list(range(0, SAMPLES, 8)), "")


def test_an_added_persistent_worker_that_dies_between_two_epochs_is_replaced() -> None:
    def kill(epoch: Epoch) -> None:
        (added,) = (group for group in epoch.kept if not group.is_own)
        for worker in added.iterator._workers:
            worker.kill()
            worker.join()

    found, failure = run_two_epochs(Squares(), kill)
    assert found == list(range(0, SAMPLES, 8))
    assert "exited unexpectedly" in failure


class OneList(Sampler[list[int]]):
    """Yields the same list each time, with other indices in it."""

    def __iter__(self) -> Iterator[list[int]]:
        batch = [0, 0]
        for first in range(0, SAMPLES, 2):
            batch[:] = first, first + 1
            yield batch


class Endless(Sampler[list[int]]):
    """Has neither an end nor a length."""

    def __iter__(self) -> Iterator[list[int]]:
        return ([number % SAMPLES] for number in itertools.count())


ODD_SAMPLERS: dict[str, Callable[[], Any]] = {
    "the same list each time": OneList,
    "no end": Endless,
    "tuples": lambda: [(0, 1), (2, 3), (5,)] * 20,
    "tensors": lambda: list(torch.arange(SAMPLES).split(7)),
    "dictionaries": lambda: [{index: "x", index + 1: "y"} for index in range(SAMPLES - 1)],
}


@pytest.mark.parametrize("own", [0, 2])
@pytest.mark.parametrize("name", ODD_SAMPLERS)
def test_batches_of_an_unusual_sampler_stay_whatever_workers_come_and_go(name: str, own: int) -> None:
    plain = DataLoader(Squares(), batch_sampler=ODD_SAMPLERS[name]())
    expected = indices_of(list(itertools.islice(plain, 50)))
    loader = DataLoader(Squares(), batch_sampler=ODD_SAMPLERS[name](), num_workers=own)
    plans = itertools.cycle([(1, 2), (3, 2), (3, 1), (2, 2), (1, 1)])

    def change(epoch: Epoch) -> None:
        epoch.change(WorkerSettings(*next(plans)))

    assert indices_of(list(itertools.islice(iterate(make_epoch(loader), change), 50))) == expected


def fail_late() -> Iterator[list[int]]:
    yield from ([index] for index in range(30))
    raise ValueError("no indices are left")


@pytest.mark.parametrize("own", [0, 2])
def test_an_error_of_the_sampler_arrives_after_the_batches_before_it(own: int) -> None:
    epoch = make_epoch(DataLoader(Squares(), batch_sampler=fail_late(), num_workers=own))
    plans = itertools.cycle([(1, 2), (3, 2), (2, 1), (0, 2)])
    batches = iterate(epoch, lambda epoch: epoch.change(WorkerSettings(*next(plans))))
    assert indices_of(list(itertools.islice(batches, 30))) == [[index] for index in range(30)]
    with pytest.raises(ValueError, match="no indices are left"):
        next(batches)


def test_indices_that_cannot_be_pickled_are_loaded_without_workers() -> None:
    loader = DataLoader(Squares(), batch_sampler=[[LocalIndex(index)] for index in range(20)])
    epoch = make_epoch(loader)
    found = list(iterate(epoch, lambda epoch: epoch.change(WorkerSettings(2, 2))))
    assert len(found) == 20
    assert "pickle" in epoch.failure


class LocalIndex(int):
    def __reduce__(self) -> Any:
        raise TypeError("cannot pickle this index")


def test_two_iterators_of_one_loader_do_not_affect_each_other() -> None:
    loader = autopilot(make_loader(2, "in order"), None, quiet=True)
    pairs = [(left[0].tolist(), right[0].tolist()) for left, right in zip(loader, loader, strict=True)]
    assert len(pairs) == 15
    assert all(left == right for left, right in pairs)
    assert [len(list(loader)) for _ in zip(loader, range(3), strict=False)] == [15] * 3


def train_and_fail(loader: DataLoader[Any]) -> None:
    for position, _ in enumerate(loader):
        if position == 2:
            raise FloatingPointError("the loss is not finite")


def test_an_error_of_the_training_leaves_no_worker_after_it_was_handled() -> None:
    before = set(list_children())
    loader = autopilot(make_loader(2, "in order"), None, quiet=True)
    with pytest.raises(FloatingPointError) as caught:
        train_and_fail(loader)
    assert set(list_children()) - before
    del caught
    iter(loader)  # is never advanced
    wait_until(lambda: not set(list_children()) - before)


END_OF_A_SCRIPT = """
from torch.utils.data import DataLoader
from autotune.online.attach import autopilot
loaders = [
    autopilot(DataLoader(range(100), num_workers=1, persistent_workers=persistent), None)
    for persistent in (False, True)
]
batches = [iter(loader) for loader in loaders]
for one in batches:
    next(one)
{end}
"""


@pytest.mark.parametrize(
    "end", ["", "del batches, one", "[*map(list, batches)]"], ids=["in an epoch", "after a break", "after all"]
)
def test_a_script_ends_without_a_message(end: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", END_OF_A_SCRIPT.format(end=end)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")

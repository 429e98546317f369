"""Datasets, steps and grids of the benchmarks."""

from __future__ import annotations

from pkgutil import resolve_name
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from benchmarks.training import count_samples, make_step
from benchmarks.workloads.catalogue import CPU_WORKLOADS, GPU_WORKLOADS
from benchmarks.workloads.grid import as_config, choose_cpus, choose_defaults, list_grid
from benchmarks.workloads.on_device import TokenNetwork, build_residual_network, send
from benchmarks.workloads.workload import BenchWorkload

CPUS = 16
CPU = torch.device("cpu")
EACH = pytest.mark.parametrize("workload", CPU_WORKLOADS, ids=lambda workload: workload.name)
EACH_ON_DEVICE = pytest.mark.parametrize("workload", GPU_WORKLOADS, ids=lambda workload: workload.name)


@EACH
def test_every_dataset_yields_a_batch_of_its_size(workload: BenchWorkload) -> None:
    dataset = resolve_name(workload.dataset)()
    batch = next(iter(DataLoader(dataset, batch_size=2)))
    assert count_samples(batch) == 2
    assert len(dataset) > 2 * workload.batch_size


@pytest.mark.filterwarnings("ignore:This DataLoader will create")  # more workers than CPUs are the point
@EACH
def test_a_grid_has_20_to_28_distinct_configurations_that_build_a_loader(workload: BenchWorkload) -> None:
    grid = list_grid(workload, CPUS)
    assert len(set(grid)) == len(grid)
    assert 20 <= len(grid) <= 28
    for config in [*grid, choose_cpus(workload, cpus=2)]:
        DataLoader(TensorDataset(torch.zeros(4)), **config.loader_kwargs())


@EACH
def test_order_is_given_up_only_where_there_is_one(workload: BenchWorkload) -> None:
    if isinstance(resolve_name(workload.dataset)(), IterableDataset):
        assert not workload.unordered


def test_arguments_that_mean_the_same_are_one_configuration() -> None:
    assert as_config({"batch_size": 8, "num_workers": 2}) == as_config(
        {"batch_size": 8, "num_workers": 2, "prefetch_factor": 2, "in_order": True, "pin_memory": False}
    )


@EACH_ON_DEVICE
def test_every_step_learns_from_a_batch_of_its_dataset_whose_batches_are_all_whole(workload: BenchWorkload) -> None:
    small = workload.shorten()
    dataset = resolve_name(small.dataset)(**small.dataset_args)
    before = torch.get_rng_state()
    make_step(small.step, 0.0, CPU)(next(iter(DataLoader(dataset, batch_size=4))))
    assert not torch.equal(before, torch.get_rng_state())  # a network was made, and nothing was raised
    assert len(dataset) % small.batch_size == 0  # a last short batch would have the device choose other kernels


def test_networks_of_full_size_take_the_batches_they_are_given() -> None:
    with torch.device("meta"):
        pictures, tokens = build_residual_network(64, (3, 4, 6, 3)), TokenNetwork(256, 4)
        assert pictures(torch.zeros(2, 3, 128, 128)).shape == (2, 10)
        assert tokens(torch.zeros(2, 256, dtype=torch.long)).shape == (2, 256, 1024)
    assert 23e6 < sum(parameter.numel() for parameter in pictures.parameters()) < 24e6  # as a ResNet-50 for ten classes


def test_an_epoch_at_full_size_has_whole_batches_only() -> None:
    sizes = {"jpeg": 4096, "floats": 1024, "tabular": 131_072, "tokens": 8192}
    assert all(sizes[workload.name] % workload.batch_size == 0 for workload in GPU_WORKLOADS)


def test_only_pinned_memory_is_copied_without_waiting() -> None:
    asked: list[bool] = []

    class Spy(torch.Tensor):
        def to(self, *arguments: Any, non_blocking: bool = False, **options: Any) -> Any:
            asked.append(non_blocking)
            return self

    send(torch.zeros(2).as_subclass(Spy), CPU)
    assert asked == [False]


@pytest.mark.filterwarnings("ignore:This DataLoader will create")  # as many workers as a large machine has CPUs
@pytest.mark.filterwarnings("ignore:'pin_memory' argument is set")
@EACH_ON_DEVICE
def test_the_grid_holds_distinct_configurations_among_them_what_people_set(workload: BenchWorkload) -> None:
    grid = list_grid(workload, CPUS)
    assert len(set(grid)) == len(grid) == 15
    assert choose_defaults(workload) in grid
    assert choose_cpus(workload, CPUS) in grid
    for config in grid:
        DataLoader(TensorDataset(torch.zeros(4)), **config.loader_kwargs())


def test_a_small_machine_has_a_small_grid() -> None:
    assert {config.dataloader.num_workers for config in list_grid(GPU_WORKLOADS[0], 2)} == {0, 1, 2}

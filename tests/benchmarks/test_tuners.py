"""How tuners are run."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import DataLoader

from benchmarks.tuners.dltune import make_command
from benchmarks.tuners.loadtune import is_loadtune_installed, make_loadtune_workload, mark_copies
from benchmarks.workloads.catalogue import GPU_WORKLOADS, find_workload
from benchmarks.workloads.grid import make_config

CPU = torch.device("cpu")


def test_the_command_is_what_a_user_types() -> None:
    words = " ".join(make_command(GPU_WORKLOADS[0]))
    assert "--batch-size 64 --epochs 3 --trials 12" in words
    assert "--device cuda --trial-time 1500ms" in words
    assert "--step-time" not in words
    rehearsed = " ".join(make_command(GPU_WORKLOADS[0].shorten()))
    assert "--batch-size 16 --epochs 2 --trials 1" in rehearsed
    assert "--dataset-arg samples=96" in rehearsed


def test_the_command_for_an_emulated_step_names_no_device() -> None:
    words = " ".join(make_command(find_workload("tutorial")))
    assert "--trials 40" in words
    assert "--step-time 10ms" in words
    assert "--device" not in words
    assert "--trial-time" not in words


def test_a_configuration_of_loadtune_is_the_same_as_ours() -> None:
    bare = make_config(8, 4, pinned=True).model_copy(update={"process": make_config(8, 4).process})
    assert mark_copies(bare) == make_config(8, 4, pinned=True)


@pytest.mark.skipif(not is_loadtune_installed(), reason="only `make bench-gpu` installs loadtune")
def test_loadtune_is_given_the_real_step() -> None:
    workload = make_loadtune_workload("tabular", quick=True)
    batch = next(iter(DataLoader(workload.make_dataset(), batch_size=4)))
    assert workload.train_step(None, None, batch, CPU).item() == 0.0

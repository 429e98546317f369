"""Memory, /dev/shm, open files and `max_workers` limit the workers of a real training run at every moment."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from autotune.system.procfs import list_tree, read_smaps
from tests.faults.capabilities import explain_lack, wrap_in_mount

pytestmark = pytest.mark.slow
MIB = 2**20

PROGRAM = """
import multiprocessing, os, resource, sys, time
import torch
from torch.utils.data import DataLoader, Dataset
from autotune.online.attach import autopilot

multiprocessing.set_start_method("fork")  # a program of -c has no module for workers to import
kept = []

class Waiting(Dataset):
    def __init__(self, floats, tensors, worker_bytes):
        self.floats, self.tensors, self.worker_bytes = floats, tensors, worker_bytes

    def __len__(self):
        return 10 ** 6

    def __getitem__(self, index):
        if self.worker_bytes and kept[:1] != [os.getpid()]:
            kept[:] = [os.getpid(), bytearray(b"1") * self.worker_bytes]
        time.sleep(0.03)
        return index, [torch.full((self.floats,), float(index)) for _ in range(self.tensors)]

floats, tensors, worker_bytes, files, own = map(int, sys.argv[1:6])
if files:
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
loader = DataLoader(Waiting(floats, tensors, worker_bytes), batch_size=1, num_workers=own)
autopilot(loader, None, **eval(sys.argv[6]))
began = time.monotonic()
for position, (index, values) in enumerate(loader):
    assert index.item() == position == values[-1][0, -1].item()
    controller = loader.autopilot_state.controller
    if time.monotonic() - began > (5 if controller.has_converged else 60):
        break
print(max(one.workers for one in controller.windows), controller.failure)
"""


def list_command(
    floats: int = 1, tensors: int = 1, worker_mib: int = 0, files: int = 0, own: int = 0, options: str = "{}"
) -> list[str]:
    numbers = (floats, tensors, worker_mib * MIB, files, own)
    return [sys.executable, "-c", PROGRAM, *map(str, numbers), options]


def run(command: list[str]) -> int:
    """Return the most workers that a training run without a failure has had."""
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stderr
    most, _, failure = ended.stdout.strip().partition(" ")
    assert failure == "", ended.stderr
    return int(most)


@pytest.mark.parametrize("own", [0, 2])
def test_the_memory_of_workers_is_below_its_budget_at_every_reading(own: int) -> None:
    budget, readings = 3072 * MIB, list[int]()
    command = list_command(worker_mib=400, own=own, options="{'max_memory': '3GiB'}")
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as training:
        while training.poll() is None:
            sizes = [read_smaps(pid) for pid in list_tree(training.pid)[1:]]
            readings.append(sum(one["Private_Dirty"] + one["Private_Clean"] for one in sizes))
            time.sleep(0.05)
        assert training.stdout is not None
        most, _, failure = training.stdout.read().strip().partition(" ")
    assert (training.returncode, failure) == (0, "")
    assert int(most) >= 4
    assert 4 * 400 * MIB < max(readings) < budget


@pytest.mark.skipif(explain_lack("mount") is not None, reason="needs a mount namespace")
def test_large_batches_fit_into_a_small_shm() -> None:
    assert 2 <= run(wrap_in_mount("size=64m", list_command(floats=2 * MIB, own=2))) <= 3


def test_open_files_do_not_exceed_their_limit() -> None:
    assert 2 <= run(list_command(tensors=8, files=256, own=0)) <= 5


def test_no_more_workers_than_the_users_maximum_start() -> None:
    assert run(list_command(options="{'max_workers': 3}")) == 3

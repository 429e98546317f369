"""Several training processes on one host: each tunes its own loader with its share of the host, and one reports."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from torch.utils.data import BatchSampler, DistributedSampler

from autotune.profiles.load import select_profile
from autotune.system.machine import read_machine

ROOT = Path(__file__).parents[2]
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
SCRIPT = """
    import json, os, sys, time
    import torch
    from torch import distributed
    from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset

    class Waiting(Dataset):
        def __len__(self):
            return 6000

        def __getitem__(self, index):
            time.sleep(float(sys.argv[1]))
            return index

    class Stream(IterableDataset):
        def __iter__(self):
            return iter(range(8))

    if __name__ == "__main__":
        distributed.init_process_group("gloo")
        rank, dataset, seen = distributed.get_rank(), Waiting(), []
        sampler = DistributedSampler(dataset, shuffle=True)
        loader = DataLoader(dataset, batch_size=4, sampler=sampler)
        for epoch in range(2):
            sampler.set_epoch(epoch)
            for batch in loader:
                distributed.all_reduce(torch.ones(1))
                seen.append(batch.tolist())
        assert len(list(DataLoader(Stream()))) == 8
        state = getattr(loader, "autopilot_state", None)
        found = {"seen": seen}
        if state is not None:
            found |= {"cpus": state._limits.cpus, "workers": state.controller.settings.workers}
        with open(f"{rank}.json", "w") as file:
            json.dump(found, file)
        distributed.destroy_process_group()
"""


def list_batches(length: int, rank: int) -> list[list[int]]:
    """Return the batches of one of two processes by torch's sampler."""
    sampler: Any = DistributedSampler(range(length), num_replicas=2, rank=rank)  # type: ignore[arg-type]
    batches = []
    for epoch in range(2):
        sampler.set_epoch(epoch)
        batches += [list(batch) for batch in BatchSampler(sampler, 4, drop_last=False)]
    return batches


def run(folder: Path, *arguments: str) -> tuple[str, list[dict[str, Any]]]:
    """Run two processes; return what they print on stderr, and what each of them found."""
    (folder / "train.py").write_text(dedent(SCRIPT))
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, *TORCHRUN, *arguments]
    ended = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, check=False, timeout=300)
    assert ended.returncode == 0, ended.stderr
    return ended.stderr, [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.slow  # three processes that import torch, and a quarter of a minute of training
def test_two_processes_get_the_batches_of_their_samplers_and_the_first_one_reports(tmp_path: Path) -> None:
    printed, tuned = run(tmp_path, "-m", "autotune", "run", "--max-workers", "3", "train.py", "0.004")
    assert [one["seen"] for one in tuned] == [list_batches(6000, rank) for rank in range(2)]
    assert [one["cpus"] for one in tuned] == [read_machine().usable_cpus / 2] * 2
    assert any(one["workers"] > 1 for one in tuned)  # the faster process waits for the other one, not for data
    assert printed.count("not tuned: an IterableDataset") == 1
    last = [line for line in printed.splitlines() if "num_workers=" in line and line.startswith("dltune: train.py:")]
    assert 1 <= len(last) <= 2  # when it converges, and at the end
    assert printed.count("Use it: DataLoader(..., num_workers=") == 1
    assert select_profile(tmp_path / "dltune.json").workload.nproc_per_node == 2

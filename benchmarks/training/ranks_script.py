"""One of several training processes: `torchrun --nproc-per-node N ranks_script.py DATASET STEP_SECONDS EPOCHS CONFIG`.

CONFIG is a configuration in JSON. Each step ends with an all-reduce of a million bytes, by gloo. Rank 0 prints the
samples per second of one process, from the first epoch's start to the last one's end.
"""

from __future__ import annotations

import sys
import time
from importlib import import_module

import torch
import torch.distributed as dist
from torch.multiprocessing import set_sharing_strategy
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from autotune.config import LoaderConfig

GRADIENTS = 250_000  # floats


def main() -> None:
    """Train."""
    dataset_name, step_seconds, epochs, config_json = sys.argv[1:]
    config = LoaderConfig.model_validate_json(config_json)
    dist.init_process_group("gloo")
    module, _, name = dataset_name.partition(":")
    dataset = getattr(import_module(module), name)()
    set_sharing_strategy(config.process.sharing_strategy)
    sampler: DistributedSampler[int] = DistributedSampler(dataset)
    loader = DataLoader(dataset, sampler=sampler, **config.loader_kwargs())
    gradients = torch.zeros(GRADIENTS)
    dist.barrier()
    samples, started = 0, time.perf_counter()
    for epoch in range(int(epochs)):
        sampler.set_epoch(epoch)
        for batch in loader:
            samples += len(batch[0])
            time.sleep(float(step_seconds))
            dist.all_reduce(gradients)
    seconds = time.perf_counter() - started
    if dist.get_rank() == 0:
        print(samples / seconds)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

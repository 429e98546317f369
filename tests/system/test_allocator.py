from __future__ import annotations

import os
import subprocess
import sys

import pytest

PAGES = 1024  # of a sample
KEEPING = {"MALLOC_TRIM_THRESHOLD_": str(2**30), "MALLOC_MMAP_THRESHOLD_": str(2**25)}
LOAD = f"""
import resource, sys, torch
from autotune.system.allocator import set_thresholds
source, samples, kept = torch.ones({PAGES} * 1024), int(sys.argv[1]), []
def load(batches):
    for _ in range(batches):
        batch = [source.clone() for _ in range(samples)]
        kept.append(bytearray(100_000))  # may lie behind the samples
set_thresholds({PAGES} * 4096, samples)
load(3)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
load(10)
print((resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) / (10 * samples))
"""


@pytest.mark.parametrize(
    ("samples", "environment", "is_given_back"),
    [(8, {}, True), (4, {}, False), (8, KEEPING, False)],
    ids=["batches of 32 MiB", "batches of 16 MiB", "the user's own thresholds"],
)
def test_each_sample_is_paged_in_again_only_in_large_batches(
    samples: int, environment: dict[str, str], is_given_back: bool
) -> None:
    command = [sys.executable, "-c", LOAD, str(samples)]
    done = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, check=True)
    faults = float(done.stdout)
    assert faults > 0.9 * PAGES if is_given_back else faults < 0.5 * PAGES

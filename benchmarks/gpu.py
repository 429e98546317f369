"""Measures choice and prediction on a GPU, with real training steps: see `benchmarks.suite`.

    python -m benchmarks.gpu [--only NAME ...] [--rounds 2] [--minutes 8] [--device cuda] [--quick]

`--device cpu --quick` rehearses it without a GPU.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from benchmarks.suite import run
from benchmarks.workloads.catalogue import GPU_WORKLOADS

RESULTS: Final = Path("benchmarks/results/gpu.json")

if __name__ == "__main__":
    run(GPU_WORKLOADS, RESULTS, __doc__, rounds=2)

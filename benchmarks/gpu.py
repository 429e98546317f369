"""The same questions as the suite's, on a GPU, with real training steps: in eight minutes at most.

For each workload dltune chooses, then a grid is screened in one warm process; then rounds: what was chosen, the best
of the grid, PyTorch's defaults and a hand setting train in turn, each in a fresh process, and a trial predicts some
of them. What there is no time for is left out and named: last rounds first, then loadtune, then whole workloads. All
four with two rounds may take longer than eight minutes; give more with --minutes, or halves with --only.

    python -m benchmarks.gpu [--only NAME ...] [--minutes 8] [--rounds 2] [--skip-peers] [--device cpu --quick]
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from benchmarks.suite import Suite, main
from benchmarks.workloads.catalogue import GPU_WORKLOADS

GPU: Final = Suite(
    description=__doc__,
    workloads=GPU_WORKLOADS,
    results=Path("benchmarks/results/gpu"),
    rehearsals="dltune-bench-gpu-quick",
    rounds=2,
    minutes=8.0,
    device="cuda",
)

if __name__ == "__main__":
    main(GPU)

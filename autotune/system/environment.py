"""What the environment says of a training process: how many threads its libraries start, and how many it is one of."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

THREAD_VARIABLES: Final = (
    *("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS", "NUMBA_NUM_THREADS"),
    *("RAYON_NUM_THREADS", "POLARS_MAX_THREADS", "BLOSC_NTHREADS"),
)  # read by libraries when they start their threads, which most do when they are first used
OTHER_VARIABLES: Final = (
    *("OMP_PROC_BIND", "GOMP_CPU_AFFINITY", "KMP_AFFINITY"),
    "TOKENIZERS_PARALLELISM",
)  # where threads run, and whether there are any

WORLD_SIZE_VARIABLES: Final = (
    *("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "SLURM_NTASKS_PER_NODE"),
)  # torchrun, Open MPI, MPICH, srun; under sbatch Slurm sets its own for torchrun as well, so it comes last


def read_local_world_size(environ: Mapping[str, str] = os.environ) -> int:
    """Return the number of training processes on this host, as torchrun, MPI or Slurm sets it; 1 if nobody does."""
    texts = (environ.get(name, "") for name in WORLD_SIZE_VARIABLES)
    return max(1, next((int(text) for text in texts if text.isdecimal()), 1))


def read_thread_variables(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Give those that are set, with their values."""
    return {name: environ[name] for name in (*THREAD_VARIABLES, *OTHER_VARIABLES) if name in environ}

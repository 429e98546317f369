"""The world of a training process: which rank it is, and where it meets the others, as torchrun tells it."""

from __future__ import annotations

import os
import socket
import sys
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from autotune.child.lockstep import Lockstep

HOST: Final = "127.0.0.1"
NEVER: Final = timedelta(days=365)  # who hangs is ended by the tuner, which can say where
RUN_ID: Final = "dltune"


@dataclass(frozen=True, slots=True)
class World:
    """One training process among those of a trial.

    Attributes:
        rank: Its number.
        size: How many there are.
        listener: Where rank 0 keeps what they tell each other; all of them hold it before they meet.
    """

    rank: int
    size: int
    listener: socket.socket

    @property
    def port(self) -> int:
        """The port that rank 0 listens on."""
        return int(self.listener.getsockname()[1])

    def enter(self) -> None:
        """Be started as by torchrun: with its variables, and OpenMP on one thread where the user says nothing of it."""
        os.environ |= self.describe_environment()
        if "OMP_NUM_THREADS" not in os.environ:
            os.environ["OMP_NUM_THREADS"] = "1"
            if "torch" in sys.modules:  # which has read that variable already
                sys.modules["torch"].set_num_threads(1)

    def describe_environment(self) -> dict[str, str]:
        """Give the variables that torchrun sets."""
        size, rank = str(self.size), str(self.rank)
        return {
            **dict.fromkeys(("RANK", "LOCAL_RANK", "ROLE_RANK"), rank),
            **dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE", "ROLE_WORLD_SIZE"), size),
            "GROUP_RANK": "0",
            "GROUP_WORLD_SIZE": "1",
            "ROLE_NAME": "default",
            "MASTER_ADDR": HOST,
            "MASTER_PORT": str(self.port),
            "TORCHELASTIC_RESTART_COUNT": "0",
            "TORCHELASTIC_MAX_RESTARTS": "0",
            "TORCHELASTIC_RUN_ID": RUN_ID,
        }

    def join(self) -> Lockstep:
        """Meet the others, as a training process does before it makes its loaders.

        Where each has a GPU of its own, tensors there are exchanged by NCCL, as in training.
        """
        import torch
        import torch.distributed as dist

        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # all of them are on this host
        port, is_first = self.port, self.rank == 0
        descriptor = self.listener.detach() if is_first else None
        self.listener.close()
        store = dist.TCPStore(  # type: ignore[attr-defined]  # torch does not list it among what it exports
            HOST, port, self.size, is_master=is_first, timeout=NEVER, master_listen_fd=descriptor
        )
        has_gpus = torch.cuda.is_available() and torch.cuda.device_count() >= self.size and dist.is_nccl_available()
        backend = "cpu:gloo,cuda:nccl" if has_gpus else "gloo"
        dist.init_process_group(backend, store=store, rank=self.rank, world_size=self.size, timeout=NEVER)
        return Lockstep(self.rank, self.size)


def listen() -> socket.socket:
    """Open the place where the ranks will meet, on a port that is free."""
    listener = socket.socket()
    listener.bind((HOST, 0))
    listener.listen()
    return listener

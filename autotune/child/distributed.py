"""The ranks of a training run: their environment, as torchrun sets it, and the steps that they make together.

A rank that waits for data makes all others wait: a run of several processes is as fast as the slowest of them.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, Literal, TypeVar

from autotune.protocol.measurement import RankWaits

MIN_LAG_SECONDS: Final = 1e-3  # that one rank waits longer than another; less is the machine's doing
OWN_WORKER: Final = "DataLoader worker"
CODES: Final = {"stop": 1.0, "abandon": 2.0}

Matter = Literal["stop", "abandon"]
Decision = TypeVar("Decision")
HOST: Final = "127.0.0.1"
NEVER: Final = timedelta(days=365)  # who hangs is ended by the tuner, which can say where
RUN_ID: Final = "dltune"


class RankLostError(Exception):
    """Another rank is gone, or has failed, and could not take part in an exchange."""


@contextmanager
def _blaming_others() -> Iterator[None]:
    """Say of an exchange that breaks off that it was not this rank that failed."""
    try:
        yield
    except RuntimeError as error:
        if OWN_WORKER in str(error):  # torch's handler of a worker's death raises wherever this process happens to be
            raise
        raise RankLostError(str(error)) from None


class Alone:
    """A training process without others to wait for."""

    decision_lag = 0  # batches after which a decision is carried out

    def __init__(self) -> None:
        self._epochs = 0  # of all trials

    def start(self) -> None:
        """Begin a trial."""

    def start_epoch(self) -> int:
        """Begin an epoch, and give its number, which is the same in all ranks."""
        self._epochs += 1
        return self._epochs - 1

    def ask(self) -> None:
        """Note that the loader is asked for a batch."""

    def arrive(self) -> None:
        """Note that it has given one."""

    def exchange(self, *, has_batch: bool = True) -> bool:
        """Tell at once that nobody lacked a batch."""
        return True

    def decide(self, matter: Matter, decision: Callable[[], bool]) -> bool:
        """Decide by itself."""
        return decision()

    def agree(self, decision: Callable[[], Decision]) -> Decision:
        """Decide by itself."""
        return decision()

    def read_epoch_wait(self, own_seconds: float) -> float:
        """Tell how long the step waited for data in this epoch, of which this process saw so many seconds."""
        return own_seconds

    def read_waits(self) -> tuple[RankWaits, ...]:
        """Tell of nobody."""
        return ()


class Lockstep(Alone):
    """One rank's part in keeping step; rank 0 decides for all of them."""

    decision_lag = 1  # the next exchange brings it to the others

    def __init__(self, rank: int, size: int, now: Callable[[], float] = time.perf_counter) -> None:
        super().__init__()
        self._rank = rank
        self._size = size
        self._now = now
        self.start()

    def start(self) -> None:
        """Begin a trial: nobody has waited so far."""
        self._waits, self._lags, self._steps = [0.0] * self._size, [0] * self._size, 0
        self.start_epoch()

    def start_epoch(self) -> int:
        """Begin an epoch, in which nothing is decided so far; give its number."""
        self._asked = self._arrived = self._now()
        self._proposed = self._decided = 0.0
        self._epoch_wait = 0.0
        return super().start_epoch()

    def ask(self) -> None:
        """Note that the loader is asked for a batch."""
        self._asked = self._now()

    def arrive(self) -> None:
        """Note that it has given one."""
        self._arrived = self._now()

    def exchange(self, *, has_batch: bool = True) -> bool:
        """Wait until every rank has made its step, and tell whether each had a batch for it."""
        waited = self._arrived - self._asked
        told = self._gather((waited, float(has_batch), self._proposed))
        self._proposed, self._decided = 0.0, told[0][2]
        is_whole = all(one[1] for one in told)
        if is_whole:
            self._note([one[0] for one in told])
        return is_whole

    def decide(self, matter: Matter, decision: Callable[[], bool]) -> bool:
        """Tell what the last exchange said; what rank 0 decides now is said by the next one."""
        if self._decided == CODES[matter]:
            return True
        if self._rank == 0 and decision():
            self._proposed = CODES[matter]
        return False

    def agree(self, decision: Callable[[], Decision]) -> Decision:
        """Give what rank 0 decides."""
        import torch.distributed as dist

        box = [decision() if self._rank == 0 else None]
        with _blaming_others():
            dist.broadcast_object_list(box, src=0)
        return box[0]  # type: ignore[return-value]  # what rank 0 put in

    def read_epoch_wait(self, own_seconds: float) -> float:
        """Tell how long the steps of this epoch waited for the rank that was last at each."""
        return max(own_seconds, self._epoch_wait)

    def read_waits(self) -> tuple[RankWaits, ...]:
        """Tell how long each rank has waited, and how often for it."""
        return tuple(
            RankWaits(wait_seconds=wait, steps=self._steps, late_steps=lags)
            for wait, lags in zip(self._waits, self._lags, strict=True)
        )

    def _gather(self, own: tuple[float, ...]) -> list[list[float]]:
        import torch
        import torch.distributed as dist

        mine = torch.tensor(own, dtype=torch.float64)
        places = [torch.empty_like(mine) for _ in range(self._size)]
        with _blaming_others():
            dist.all_gather(places, mine)
        return [place.tolist() for place in places]

    def _note(self, waits: list[float]) -> None:
        self._steps += 1
        self._epoch_wait += max(waits)
        self._waits = [total + wait for total, wait in zip(self._waits, waits, strict=True)]
        if max(waits) - min(waits) > MIN_LAG_SECONDS:
            self._lags[waits.index(max(waits))] += 1


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

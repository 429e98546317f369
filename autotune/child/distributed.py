"""Several training processes on one host: their environment, as torchrun sets it, their steps and their reports.

A rank whose device waits for data delays all others: the run is as fast as the slowest rank at each step.
"""

from __future__ import annotations

import os
import random
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, Final, Literal, get_args

from autotune.protocol import messages
from autotune.protocol.measurement import Measurement, RankWaits, StopReason
from autotune.protocol.messages import Channel, ChannelClosedError, FailureReport, LostRankReport, Report
from autotune.system.procfs import die_with_parent

GRACE_SECONDS: Final = 1.0  # for other ranks to report after one has failed
NEVER: Final = timedelta(days=365)  # the tuner ends hung ranks, and reports where they hang
# From torch 2.10 on, gloo's thread drops its reference with the GIL, after all_reduce has returned. To take the GIL it
# locks all thread states; a worker that Python 3.11 forks at that moment waits for this lock forever.
OWN_REFERENCES: Final = 2  # a local variable, and the argument of getrefcount
RELEASE_SECONDS: Final = 1.0
HOST: Final = "127.0.0.1"
VOTES: Final = ("stop", "abandon")
STOP_REASONS: Final[tuple[StopReason, ...]] = get_args(StopReason)


class RankLostError(Exception):
    """Communication failed because another rank has ended or failed."""


class RankSync:
    """Steps and decisions of one of `size` training processes; all of them act on rank 0's decisions at the same step.

    A single process decides at once, without communication.
    """

    def __init__(self, rank: int = 0, size: int = 1) -> None:
        self.decision_lag = int(size > 1)  # steps between a decision and its effect
        self._rank, self._size = rank, size
        self._epochs, self._epoch_steps = -1, 0  # of all trials, and of this epoch
        self.start()

    def start(self) -> None:
        """Start a trial."""
        self._waits, self._steps = [0.0] * self._size, 0

    def start_epoch(self) -> int:
        """Start an epoch, and return its number, which is the same in all ranks."""
        self._vote = self._decided = ""
        self._epoch_steps = 0
        self._epochs += 1
        return self._epochs

    def sync_step(self, *, has_batch: bool = True) -> bool:
        """Exchange votes after a step; return whether all ranks had a batch."""
        if self._size == 1:
            return True
        missing, *votes = self._sum([float(not has_batch), *(float(self._vote == vote) for vote in VOTES)])
        self._vote, self._decided = "", next((vote for vote, count in zip(VOTES, votes, strict=True) if count), "")
        self._epoch_steps += not missing
        return not missing

    def end_epoch(self, waits: Sequence[float]) -> float:
        """Exchange the waits for each batch, in seconds; return the sum of the longest of any rank at each step.

        They are exchanged at the end because those of a device are not known before it has done the step.
        """
        steps = self._epoch_steps
        if self._size == 1 or not steps:
            return 0.0
        seconds = [0.0] * (self._size * steps)
        seconds[self._rank :: self._size] = waits[:steps]
        sums, total_seconds = self._sum(seconds), 0.0
        for of_step in (sums[first : first + self._size] for first in range(0, len(sums), self._size)):
            total_seconds += max(of_step)
            self._waits = [total + wait for total, wait in zip(self._waits, of_step, strict=True)]
        self._steps += steps
        return total_seconds

    def decide(self, vote: Literal["stop", "abandon"], decision: Callable[[], bool]) -> bool:
        """Return rank 0's decision as of the last step; with several ranks, rank 0 votes in the next one."""
        if self._size == 1:
            return decision()
        if self._decided != vote and self._rank == 0 and decision():
            self._vote = vote
        return self._decided == vote

    def agree(self, plan: Callable[[], int | StopReason]) -> int | StopReason:
        """Return rank 0's plan for the next epoch."""
        own = plan() if self._rank == 0 else 0
        code = own if isinstance(own, int) else -1 - STOP_REASONS.index(own)
        code = int(self._sum([float(code)])[0])
        return code if code >= 0 else STOP_REASONS[-1 - code]

    def read_waits(self) -> tuple[RankWaits, ...]:
        """Return the waits of each of several ranks."""
        waits = self._waits if self._size > 1 else ()
        return tuple(RankWaits(wait_seconds=seconds, steps=self._steps) for seconds in waits)

    def _sum(self, values: list[float]) -> list[float]:
        if self._size == 1:
            return values
        import torch
        import torch.distributed as dist

        tensor = torch.tensor(values, dtype=torch.float64, device="cpu")
        try:
            dist.all_reduce(tensor)
        except RuntimeError as error:
            if "DataLoader worker" in str(error):  # of torch's SIGCHLD handler, which can be raised anywhere
                raise
            raise RankLostError(str(error)) from None
        deadline = time.monotonic() + RELEASE_SECONDS
        while sys.getrefcount(tensor) > OWN_REFERENCES and time.monotonic() < deadline:
            time.sleep(0)  # lets gloo's thread take the GIL
        sums: list[float] = tensor.tolist()
        return sums


@dataclass(frozen=True, slots=True)
class RankEnv:
    """Environment of one rank: its number, the file in which ranks meet, and a free port for groups of the user's."""

    rank: int
    size: int
    store: Path
    port: int

    def init_process_group(self) -> RankSync:
        """Initialize torch's default process group, after the variables that torchrun sets but those of threads.

        CUDA tensors use NCCL if each rank has a GPU.
        """
        import torch
        import torch.distributed as dist

        size, rank = str(self.size), str(self.rank)
        os.environ |= {
            **dict.fromkeys(("RANK", "LOCAL_RANK"), rank),
            **dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), size),
            "TORCHELASTIC_RUN_ID": "dltune",
            "MASTER_ADDR": HOST,
            "MASTER_PORT": str(self.port),
        }
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # all ranks are on this host
        has_gpus = torch.cuda.is_available() and torch.cuda.device_count() >= self.size and dist.is_nccl_available()
        backend = "cpu:gloo,cuda:nccl" if has_gpus else "gloo"
        place = f"file://{self.store}"
        dist.init_process_group(backend, place, rank=self.rank, world_size=self.size, timeout=NEVER)
        return RankSync(self.rank, self.size)


class RankGroup:
    """The ranks of a trial, forked by this process, each of which calls `serve_rank`."""

    def __init__(self, tuner: Channel, size: int, serve_rank: Callable[[Channel, RankEnv], None]) -> None:
        self._tuner = tuner
        self._channels: list[Channel] = []
        self._pids: list[int] = []
        store, parent = Path(tempfile.mkdtemp(), "store"), os.getpid()
        with socket.socket() as listener:
            listener.bind((HOST, 0))
            port = listener.getsockname()[1]
        for rank in range(size):
            ours, theirs = socket.socketpair()
            pid = os.fork()
            if not pid:
                die_with_parent()
                if os.getppid() != parent:
                    os._exit(3)
                ours.close()
                for other in (*self._channels, tuner):
                    other.close()
                reseed_rngs()
                serve_rank(Channel(theirs), RankEnv(rank, size, store, port))
                os._exit(0)
            theirs.close()
            self._pids.append(pid)
            self._channels.append(Channel(ours))

    def serve(self, command: str | None) -> None:
        """Forward this command, and further ones until the tuner closes the channel."""
        with suppress(ChannelClosedError):
            while command is not None:
                self._tuner.send(self._broadcast(command).model_dump_json())
                command = self._tuner.receive()

    def _broadcast(self, command: str) -> Report:
        """Send a command to all ranks, and return their merged report; progress is that of the first unfinished one."""
        for channel in self._channels:
            with suppress(ChannelClosedError):  # found again when reading
                channel.send(command)
        reports: dict[int, Report] = {}
        deadline: float | None = None
        while waiting := {one.fileno(): rank for rank, one in enumerate(self._channels) if rank not in reports}:
            if deadline is None and any(isinstance(one, FailureReport | LostRankReport) for one in reports.values()):
                deadline = time.monotonic() + GRACE_SECONDS
            ready = wait(list(waiting), None if deadline is None else max(0.0, deadline - time.monotonic()))
            if not ready:
                break
            for rank in (rank for descriptor, rank in waiting.items() if descriptor in ready):
                report = self._receive(rank)
                if not isinstance(report, messages.ProgressReport):
                    reports[rank] = report
                elif rank == min(waiting.values()):
                    self._tuner.send(report.model_dump_json())
        return merge_reports(reports, len(self._channels))

    def _receive(self, rank: int) -> Report:
        try:
            return messages.REPORT.validate_json(self._channels[rank].receive() or "")
        except ChannelClosedError:
            return LostRankReport(rank=rank, status=os.waitstatus_to_exitcode(os.waitpid(self._pids[rank], 0)[1]))


def merge_reports(reports: dict[int, Report], ranks: int) -> Report:
    """Merge the reports of the ranks: a failure, else the measurement of the rank that waited most, with all samples.

    Precedence: a rank that ended, then a rank that raised, then ranks that lost another one.
    """
    lost = [one for one in reports.values() if isinstance(one, LostRankReport)]
    failed = [(rank, one) for rank, one in reports.items() if isinstance(one, FailureReport)]
    own = [(rank, one) for rank, one in failed if one.stage != "ranks"]
    if own and (not lost or len(own) == ranks):
        rank, report = own[0]
        return report.model_copy(update={"rank": None if len(own) == ranks else rank})
    if lost or failed:
        return lost[0] if lost else failed[0][1]
    measured = [one.measurement for _, one in sorted(reports.items()) if isinstance(one, messages.TrialReport)]
    if len(measured) < ranks:
        return reports[0]
    waits = [rank.wait_seconds for rank in measured[0].ranks]
    slowest = measured[waits.index(max(waits))]
    changes: dict[str, Any] = {"peak_gpu_bytes": max(one.peak_gpu_bytes for one in measured), "ranks": ()}
    for waits_of_rank, one in zip(slowest.ranks, measured, strict=True):
        changes["ranks"] += (waits_of_rank.model_copy(update={"samples": _count_epoch_samples(one)}),)
    return messages.TrialReport(measurement=slowest.model_copy(update=changes))


def _count_epoch_samples(measured: Measurement) -> int:
    """Return the samples of a whole epoch, by their mean number in a batch if they are not known; 0 if unknown."""
    first = measured.epochs[0]
    if first.closed_after is None:
        return first.samples
    return measured.epoch_samples or round((measured.epoch_batches or 0) * first.samples / max(1, first.batches))


def reseed_rngs() -> None:
    """Seed the global generators of Python, numpy and torch from the system; every fork would draw the same numbers."""
    random.seed()
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()
    if "torch" in sys.modules:
        sys.modules["torch"].default_generator.seed()

"""Several training processes on one host: their environment, as torchrun sets it, their steps and their reports.

A rank that waits for data delays all others: the run is as fast as the slowest rank at each step.
"""

from __future__ import annotations

import os
import random
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import wait
from pathlib import Path
from typing import Final, Literal, get_args

from autotune.protocol.measurement import Measurement, RankWaits, StopReason
from autotune.protocol.messages import (
    REPORT,
    Channel,
    ChannelClosedError,
    FailureReport,
    LostRankReport,
    ProgressReport,
    Report,
    TrialReport,
)
from autotune.system.processes import die_with_parent

MIN_LAG_SECONDS: Final = 1e-3  # between the waits of two ranks; smaller differences are noise
GRACE_SECONDS: Final = 1.0  # for other ranks to report after one has failed
NEVER: Final = timedelta(days=365)  # the tuner ends hung ranks, and reports where they hang
HOST: Final = "127.0.0.1"
WORKER_DEATH: Final = "DataLoader worker"  # in errors of torch's SIGCHLD handler, which can be raised anywhere
VOTES: Final = ("stop", "abandon")
STOP_REASONS: Final[tuple[StopReason, ...]] = get_args(StopReason)


class RankLostError(Exception):
    """Communication failed because another rank has ended or failed."""


class RankSync:
    """Steps and decisions of one of `size` training processes; all of them act on rank 0's decisions at the same step.

    A single process decides at once and communicates with nobody.
    """

    def __init__(self, rank: int = 0, size: int = 1, now: Callable[[], float] = time.perf_counter) -> None:
        self.decision_lag = int(size > 1)  # steps between a decision and its effect
        self._rank = rank
        self._size = size
        self._now = now
        self._epochs = 0  # of all trials
        self.start()

    def start(self) -> None:
        """Begin a trial."""
        self._waits, self._lags, self._steps = [0.0] * self._size, [0] * self._size, 0
        self._wait_began = self._wait_ended = self._epoch_wait = 0.0
        self._vote = self._decided = ""

    def start_epoch(self) -> int:
        """Begin an epoch, and return its number, which is the same in all ranks."""
        self._epoch_wait = 0.0
        self._vote = self._decided = ""
        self._epochs += 1
        return self._epochs - 1

    def start_wait(self) -> None:
        """Record that the loop begins to wait for a batch."""
        self._wait_began = self._now()

    def end_wait(self) -> None:
        """Record that the batch has arrived."""
        self._wait_ended = self._now()

    def sync_step(self, *, has_batch: bool = True) -> bool:
        """Exchange waits and votes with all ranks, and return whether each had a batch."""
        if self._size == 1:
            return True
        waits = [0.0] * self._size
        waits[self._rank] = self._wait_ended - self._wait_began
        votes = [float(self._vote == vote) for vote in VOTES]
        missing, *sums = self._sum([float(not has_batch), *votes, *waits])
        self._vote, self._decided = "", next((vote for vote, count in zip(VOTES, sums, strict=False) if count), "")
        if not missing:
            self._record(sums[len(VOTES) :])
        return not missing

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

    def read_epoch_wait(self, own_seconds: float) -> float:
        """Return the sum of the longest wait at each step of this epoch, of which `own_seconds` were this rank's."""
        return max(own_seconds, self._epoch_wait)

    def read_waits(self) -> tuple[RankWaits, ...]:
        """Return the waits of each of several ranks, and how often it was the last."""
        ranks = zip(self._waits, self._lags, strict=True) if self._size > 1 else ()
        return tuple(RankWaits(wait_seconds=seconds, steps=self._steps, late_steps=lags) for seconds, lags in ranks)

    def _sum(self, values: list[float]) -> list[float]:
        """Return the sums over all ranks."""
        if self._size == 1:
            return values
        import torch
        import torch.distributed as dist

        tensor = torch.tensor(values, dtype=torch.float64)
        try:
            dist.all_reduce(tensor)
        except RuntimeError as error:
            if WORKER_DEATH in str(error):
                raise
            raise RankLostError(str(error)) from None
        sums: list[float] = tensor.tolist()
        return sums

    def _record(self, waits: list[float]) -> None:
        self._steps += 1
        self._epoch_wait += max(waits)
        self._waits = [total + seconds for total, seconds in zip(self._waits, waits, strict=True)]
        if max(waits) - min(waits) > MIN_LAG_SECONDS:
            self._lags[waits.index(max(waits))] += 1


@dataclass(frozen=True, slots=True)
class RankEnv:
    """Environment of one rank: its number, the file in which ranks meet, and a free port for groups of the user's."""

    rank: int
    size: int
    store: Path
    port: int

    def export_environment(self) -> None:
        """Set the variables that torchrun sets, and OpenMP to one thread unless the user has set it."""
        size, rank = str(self.size), str(self.rank)
        os.environ |= {
            **dict.fromkeys(("RANK", "LOCAL_RANK", "ROLE_RANK"), rank),
            **dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE", "ROLE_WORLD_SIZE"), size),
            "GROUP_RANK": "0",
            "GROUP_WORLD_SIZE": "1",
            "ROLE_NAME": "default",
            "MASTER_ADDR": HOST,
            "MASTER_PORT": str(self.port),
            "TORCHELASTIC_RESTART_COUNT": "0",
            "TORCHELASTIC_MAX_RESTARTS": "0",
            "TORCHELASTIC_RUN_ID": "dltune",
        }
        if "OMP_NUM_THREADS" not in os.environ:
            os.environ["OMP_NUM_THREADS"] = "1"
            if "torch" in sys.modules:  # which has read that variable already
                sys.modules["torch"].set_num_threads(1)

    def init_process_group(self) -> RankSync:
        """Initialize torch's default process group; CUDA tensors use NCCL if each rank has a GPU."""
        import torch
        import torch.distributed as dist

        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # all ranks are on this host
        store = dist.FileStore(str(self.store), self.size)  # type: ignore[attr-defined]  # torch does not export it
        store.set_timeout(NEVER)
        has_gpus = torch.cuda.is_available() and torch.cuda.device_count() >= self.size and dist.is_nccl_available()
        backend = "cpu:gloo,cuda:nccl" if has_gpus else "gloo"
        dist.init_process_group(backend, store=store, rank=self.rank, world_size=self.size, timeout=NEVER)
        return RankSync(self.rank, self.size)


class RankGroup:
    """The ranks of a trial, forked by this process: each command goes to all of them, and their reports are merged.

    `serve` serves commands as one rank.
    """

    def __init__(self, tuner: Channel, size: int, serve: Callable[[Channel, RankEnv], None]) -> None:
        self._tuner = tuner
        self._serve_rank = serve
        self._channels: list[Channel] = []
        self._pids: list[int] = []
        store = Path(tempfile.mkdtemp(), "store")
        with socket.socket() as listener:
            listener.bind((HOST, 0))
            port = listener.getsockname()[1]
        for rank in range(size):
            self._start(RankEnv(rank, size, store, port))

    def _start(self, env: RankEnv) -> None:
        ours, theirs = socket.socketpair()
        parent = os.getpid()
        pid = os.fork()
        if not pid:
            die_with_parent()
            if os.getppid() != parent:
                os._exit(3)
            ours.close()
            for other in (*self._channels, self._tuner):
                other.close()
            reseed_rngs()
            env.export_environment()
            self._serve_rank(Channel(theirs), env)
            os._exit(0)
        theirs.close()
        self._pids.append(pid)
        self._channels.append(Channel(ours))

    def serve(self, first: str) -> None:
        """Forward commands until the tuner closes the channel; the first has been received already."""
        command: str | None = first
        try:
            while command is not None:
                self._tuner.send(self._broadcast(command).model_dump_json())
                command = self._tuner.receive()
        except ChannelClosedError:
            return

    def _broadcast(self, command: str) -> Report:
        """Send a command to all ranks, and return their merged report."""
        reports: dict[int, Report] = {}
        for channel in self._channels:
            with suppress(ChannelClosedError):  # found again when reading
                channel.send(command)
        deadline: float | None = None
        while len(reports) < len(self._channels):
            if deadline is None and any(isinstance(one, FailureReport | LostRankReport) for one in reports.values()):
                deadline = time.monotonic() + GRACE_SECONDS
            ready = self._poll(reports, deadline)
            if not ready:
                break
            for rank in ready:
                self._read_message(rank, reports)
        return merge_reports(reports, len(self._channels))

    def _poll(self, reports: dict[int, Report], deadline: float | None) -> list[int]:
        """Wait for messages; return their ranks, or none at the deadline."""
        ranks = {channel.fileno(): rank for rank, channel in enumerate(self._channels) if rank not in reports}
        ready = wait(list(ranks), None if deadline is None else max(0.0, deadline - time.monotonic()))
        return [rank for descriptor, rank in ranks.items() if descriptor in ready]

    def _read_message(self, rank: int, reports: dict[int, Report]) -> None:
        """Read a message of a rank; progress is forwarded from the first rank that has not reported."""
        try:
            message = self._channels[rank].receive()
        except ChannelClosedError:
            _, status = os.waitpid(self._pids[rank], 0)
            reports[rank] = LostRankReport(rank=rank, status=os.waitstatus_to_exitcode(status))
            return
        assert message is not None  # there was no time limit
        report = REPORT.validate_json(message)
        if not isinstance(report, ProgressReport):
            reports[rank] = report
        elif rank == min(set(range(len(self._channels))) - reports.keys()):
            self._tuner.send(message)


def merge_reports(reports: dict[int, Report], ranks: int) -> Report:
    """Merge the reports of the ranks: a failure if one failed, else the measurement of the slowest rank.

    Precedence: a rank that ended, then a rank that raised, then ranks that lost another one.
    """
    lost = [one for one in reports.values() if isinstance(one, LostRankReport)]
    failed = [(rank, one) for rank, one in reports.items() if isinstance(one, FailureReport)]
    own = [(rank, one) for rank, one in failed if one.where != "ranks"]
    if own and (not lost or len(own) == ranks):
        rank, report = own[0]
        return report.model_copy(update={"rank": None if len(own) == ranks else rank})
    if lost or failed:
        return lost[0] if lost else failed[0][1]
    measured = [one.measurement for _, one in sorted(reports.items()) if isinstance(one, TrialReport)]
    return TrialReport(measurement=_merge_measurements(measured)) if len(measured) == ranks else reports[0]


def _merge_measurements(measured: list[Measurement]) -> Measurement:
    """Return the measurement of the rank that waited most, with the samples of each rank and the largest memory."""
    waits = [rank.wait_seconds for rank in measured[0].ranks]
    slowest = measured[waits.index(max(waits))]
    samples = [
        one.epochs[0].samples if one.epochs[0].closed_after is None else one.epoch_samples or 0 for one in measured
    ]
    ranks = [rank.model_copy(update={"samples": own}) for rank, own in zip(slowest.ranks, samples, strict=True)]
    largest = {name: max(getattr(one, name) for one in measured) for name in ("peak_gpu_bytes", "gpu_growth_bytes")}
    return slowest.model_copy(update={"ranks": tuple(ranks), **largest})


def reseed_rngs() -> None:
    """Seed the global generators of Python and numpy from the system; every fork would draw the same numbers."""
    random.seed()
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()

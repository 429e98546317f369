"""Messages between the tuner and its child process: JSON over a private socket.

User code may print anything to stdout and stderr; neither is read as a message, and nothing received is unpickled.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Annotated, Final, Literal

from pydantic import Field, TypeAdapter

from autotune.config import Count, Fraction, FrozenModel, LoaderConfig, LongText, Rate, Seconds
from autotune.protocol.measurement import Measurement, TrialResult
from autotune.protocol.workload_profile import WorkloadProfile
from autotune.request import WorkloadRequest

MAX_MESSAGE_BYTES: Final = 64 * 2**20
MAX_PAUSE_SECONDS: Final = 10.0  # within a message, before the connection counts as closed
MEASURING_PHASE: Final = "measuring"  # of a trial

Stage = Literal["import", "device", "ranks", "dataset", "step", "probe", "trial", "running step"]


class TrialRequest(FrozenModel):
    """Parent to child: run a trial."""

    op: Literal["run"] = "run"
    config: LoaderConfig
    epochs: Count  # of the training run whose throughput is estimated
    seconds: Seconds  # time limit
    seeks_end: bool = False  # whether an epoch of unknown length may take twice as long, since its end shows its length
    precision: Fraction = 0.02  # relative half-width of the 95% interval at which the measurement may end
    prune_below: Rate | None = None  # throughput below which the trial may end, samples per second
    new_process: bool = False  # else in the process of the last trial
    gpu_bytes: Count | None = None  # limit of the device memory allocator; None for all of the device


RunTrial = Callable[[TrialRequest], TrialResult]  # in a child process, or by a formula in tests


class LoadCommand(FrozenModel):
    """Parent to child, first: load the workload."""

    op: Literal["load"] = "load"
    workload: WorkloadRequest
    ranks: Annotated[int, Field(ge=1)] = 1  # training processes to load it in
    known: WorkloadProfile | None = None  # by an earlier process


class ProbeCommand(FrozenModel):
    """Parent to child: profile the workload, as far as the role of the process allows."""

    op: Literal["probe"] = "probe"
    batch_sizes: tuple[Annotated[int, Field(ge=1)], ...] = ()  # of the request; empty for those of the workload
    usable_cpus: Annotated[float, Field(gt=0, le=1e6)]  # that can be kept busy, by affinity and by every quota
    memory_bytes: Count  # budget of host memory
    max_workers: Count
    profile: WorkloadProfile | None = None  # for role `workers`: the profile by role `main`, to be completed
    digests: dict[Count, LongText] = Field(default_factory=dict)  # of samples as role `main` read them, by index


class ReleaseCommand(FrozenModel):
    """Parent to child: shut down the trial's workers."""

    op: Literal["release"] = "release"


class ProgressReport(FrozenModel):
    """Child to parent: the current phase, for display, and the batches that the trial has consumed."""

    op: Literal["progress"] = "progress"
    phase: LongText
    batches: Count = 0


class ReadyReport(FrozenModel):
    """Child to parent: the last command is complete; `on_device` if the process uses an accelerator."""

    op: Literal["ready"] = "ready"
    on_device: bool = False


class ProbeReport(FrozenModel):
    """Child to parent: what it found.

    Attributes:
        profile: The profile of the workload.
        digests: Digests of samples as this process read them, by index.
        libraries: Installed libraries that the user's code has imported.
        environment: Variables that it has set.
    """

    op: Literal["probed"] = "probed"
    profile: WorkloadProfile
    digests: dict[Count, LongText] = Field(default_factory=dict)
    libraries: tuple[str, ...] = ()
    environment: dict[str, str] = Field(default_factory=dict)


class TrialReport(FrozenModel):
    """Child to parent: the trial's measurement; its workers are still alive."""

    op: Literal["measured"] = "measured"
    measurement: Measurement


class FailureReport(FrozenModel):
    """Child to parent: user code or torch raised an exception."""

    op: Literal["failed"] = "failed"
    stage: Stage
    error: LongText  # type and message
    details: LongText = ""  # traceback
    on_device: bool = False  # whether the process uses an accelerator
    samples: Count = 0  # of the trial, including the batch that failed
    rank: Count | None = None  # the only training process that failed; None if all did


class LostRankReport(FrozenModel):
    """Child to parent: one of several training processes has ended, with a status as in `subprocess`."""

    op: Literal["lost"] = "lost"
    rank: Count
    status: int


Command = Annotated[LoadCommand | ProbeCommand | TrialRequest | ReleaseCommand, Field(discriminator="op")]
Report = Annotated[
    ProgressReport | ReadyReport | ProbeReport | TrialReport | FailureReport | LostRankReport,
    Field(discriminator="op"),
]
COMMAND: Final[TypeAdapter[Command]] = TypeAdapter(Command)
REPORT: Final[TypeAdapter[Report]] = TypeAdapter(Report)


class ChannelClosedError(Exception):
    """The other process has ended, stopped within a message, or sent more than 64 MiB."""


class Channel:
    """Sends and receives messages over a connected stream socket, which it takes over."""

    def __init__(self, connected: socket.socket, pause_seconds: float = MAX_PAUSE_SECONDS) -> None:
        pause = struct.pack("ll", int(pause_seconds), int(pause_seconds % 1 * 1e6))
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, pause)
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, pause)
        self._connection = Connection(connected.detach())

    def fileno(self) -> int:
        """Return the descriptor of the socket."""
        return self._connection.fileno()

    def send(self, message: str) -> None:
        """Send one message, or raise ChannelClosedError."""
        try:
            self._connection.send_bytes(message.encode())
        except OSError as error:
            if isinstance(error, BlockingIOError):  # only part of the message was sent
                self.close()
            raise ChannelClosedError(str(error)) from None

    def receive(self, timeout: float | None = None) -> str | None:
        """Wait for one message; return None if none begins within `timeout` seconds. Raises ChannelClosedError."""
        try:
            if not self._connection.poll(timeout):
                return None
            return self._connection.recv_bytes(MAX_MESSAGE_BYTES).decode(errors="replace")
        except (EOFError, OSError) as error:
            self.close()
            raise ChannelClosedError(str(error)) from None

    def close(self) -> None:
        """Close the socket."""
        self._connection.close()

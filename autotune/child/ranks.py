"""Runs a trial in several training processes at once, and answers the tuner for all of them.

They live in the sandbox of the one that starts them, share its budgets, and end with it. Each serves commands as the
only process of a trial does; what is told to all of them is one command here, and their answers are one answer.
"""

from __future__ import annotations

import os
import random
import select
import socket
import sys
import time
from typing import Final, NoReturn

from autotune.child.distributed import World, listen
from autotune.child.server import TrialServer
from autotune.protocol.channel import Channel, ChannelClosedError
from autotune.protocol.measurement import Measurement
from autotune.protocol.messages import (
    COMMAND,
    REPORT,
    FailureReport,
    LoadCommand,
    LostRankReport,
    ProgressReport,
    Report,
    TrialReport,
)
from autotune.system.processes import die_with_parent

LAST_WORDS_SECONDS: Final = 1.0  # for other ranks to say what went wrong, once one of them has failed


def serve_tuner(channel: Channel) -> None:
    """Serve the tuner until it closes the line: by this process, or by several where training is done by several."""
    try:
        first = channel.receive()
    except ChannelClosedError:
        return
    assert first is not None  # no time limit was set
    command = COMMAND.validate_json(first)
    if not isinstance(command, LoadCommand) or command.workload.nproc_per_node == 1:
        TrialServer(channel).serve(first)
        return
    RankGroup(channel, command.ranks).serve(first)


class RankGroup:
    """The training processes of a trial, one for each rank; this process only passes on what is said."""

    def __init__(self, tuner: Channel, size: int) -> None:
        self._tuner = tuner
        self._lines: list[Channel] = []
        self._pids: list[int] = []
        self._sockets: list[socket.socket] = []
        listener = listen()
        for rank in range(size):
            self._start(World(rank, size, listener))
        listener.close()

    def _start(self, world: World) -> None:
        ours, theirs = socket.socketpair()
        starter = os.getpid()
        pid = os.fork()
        if not pid:
            ours.close()
            self._become(world, theirs, starter)
        theirs.close()
        self._pids.append(pid)
        self._sockets.append(ours)
        self._lines.append(Channel(ours))

    def _become(self, world: World, line: socket.socket, starter: int) -> NoReturn:
        """Go on as one rank."""
        die_with_parent()
        if os.getppid() != starter:
            os._exit(3)
        for other in self._lines:
            other.close()
        self._tuner.close()
        reseed_rngs()
        world.enter()
        TrialServer(Channel(line), world).serve()
        os._exit(0)

    def serve(self, first: str) -> None:
        """Pass commands on until the tuner closes the line, or a rank is gone."""
        line: str | None = first
        try:
            while line is not None:
                self._tuner.send(self._carry_out(line).model_dump_json())
                line = self._tuner.receive()
        except ChannelClosedError:
            return

    def _carry_out(self, command: str) -> Report:
        """Give a command to all ranks, and make one answer of theirs."""
        answers: dict[int, Report] = {}
        for rank, line in enumerate(self._lines):
            try:
                line.send(command)
            except ChannelClosedError:
                answers[rank] = self._describe_loss(rank)
        deadline: float | None = None
        while len(answers) < len(self._lines):
            if deadline is None and any(isinstance(one, FailureReport | LostRankReport) for one in answers.values()):
                deadline = time.monotonic() + LAST_WORDS_SECONDS
            if not self._listen(answers, deadline):
                break
        return join_answers(answers, len(self._lines))

    def _listen(self, answers: dict[int, Report], deadline: float | None) -> bool:
        """Take in what ranks say that have not answered; False when the time ran out."""
        poll = select.poll()
        ranks = {self._sockets[rank].fileno(): rank for rank in range(len(self._lines)) if rank not in answers}
        for descriptor in ranks:
            poll.register(descriptor, select.POLLIN)
        left = None if deadline is None else max(0.0, deadline - time.monotonic()) * 1000
        ready = poll.poll(left)
        for descriptor, _ in ready:
            self._hear(ranks[descriptor], answers)
        return bool(ready)

    def _hear(self, rank: int, answers: dict[int, Report]) -> None:
        """Take in what a rank says; of several, the first that has not answered tells how far they are."""
        try:
            while (line := self._lines[rank].receive(0.0)) is not None:
                report = REPORT.validate_json(line)
                if not isinstance(report, ProgressReport):
                    answers[rank] = report
                elif rank == min(set(range(len(self._lines))) - answers.keys()):
                    self._tuner.send(line)
        except ChannelClosedError:
            answers[rank] = self._describe_loss(rank)

    def _describe_loss(self, rank: int) -> LostRankReport:
        """Tell how a rank has ended."""
        _, status = os.waitpid(self._pids[rank], 0)
        return LostRankReport(rank=rank, status=os.waitstatus_to_exitcode(status))


def join_answers(answers: dict[int, Report], ranks: int) -> Report:
    """Make one answer of those of the ranks, by number: a failure where one failed, else the slowest one's measurement.

    One that is gone tells more than one that failed, and that more than those that waited for it in vain.
    """
    lost = [one for one in answers.values() if isinstance(one, LostRankReport)]
    failed = {rank: one for rank, one in answers.items() if isinstance(one, FailureReport)}
    own = {rank: one for rank, one in failed.items() if one.where != "ranks"}
    if own and (not lost or len(own) == ranks):
        rank, report = next(iter(own.items()))
        return report.model_copy(update={"rank": None if len(own) == ranks else rank})
    if lost:
        return lost[0]
    if failed:
        return next(iter(failed.values()))
    measured = [answers[rank] for rank in sorted(answers)]
    if all(isinstance(one, TrialReport) for one in measured):
        return TrialReport(measurement=join_measurements([one.measurement for one in measured]))  # type: ignore[union-attr]  # all of them are
    return measured[0]


def join_measurements(measured: list[Measurement]) -> Measurement:
    """Take the measurement of the rank that waited most for its data, for which the others waited; and add the rest."""
    waits = [rank.wait_seconds for rank in measured[0].ranks]
    slowest = measured[waits.index(max(waits))]
    ranks = [
        rank.model_copy(update={"samples": _count_epoch_samples(one)})
        for rank, one in zip(slowest.ranks, measured, strict=True)
    ]
    largest = {name: max(getattr(one, name) for one in measured) for name in ("peak_gpu_bytes", "gpu_growth_bytes")}
    return slowest.model_copy(update={"ranks": tuple(ranks), **largest})


def _count_epoch_samples(measured: Measurement) -> int:
    """Count the samples of a whole epoch: those of the first, or those that it would have had; 0 where nobody knows."""
    first = measured.epochs[0]
    return first.samples if first.closed_after is None else measured.epoch_samples or 0


def reseed_rngs() -> None:
    """Seed the global generators of Python and numpy from the system; every fork would draw the same numbers."""
    random.seed()
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()

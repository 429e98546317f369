"""Sampling profiler for data-loading code: finds the lines of the user's own code that loading spends its time in."""

from __future__ import annotations

import linecache
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from types import FrameType
from typing import Final

from autotune.child.loader import build_plain_loader
from autotune.child.probe_workers import ROUND_BATCH_SIZE, single_thread
from autotune.child.workload import LoadedWorkload
from autotune.protocol.workload_profile import CostlyLine
from autotune.system.code_places import is_library

SECONDS: Final = 0.2
INTERVAL_SECONDS: Final = 2e-3
MIN_LOOKS: Final = 20  # fewer give no share
MAX_LINES: Final = 5
MIN_SHARE: Final = 0.05  # of loading
FETCH: Final = os.path.join("torch", "utils", "data", "_utils", "fetch.py")  # noqa: PTH118  # the end of a path

Place = tuple[str, int, str]
"""File, line and function."""


class SamplingProfiler(threading.Thread):
    """Samples the stack of a thread while it loads, until it is stopped.

    Attributes:
        looks: Samples of a stack that was loading.
        counts: Samples by the innermost line of the user's own code.
    """

    def __init__(self, watched: int) -> None:
        super().__init__(daemon=True)
        self.looks = 0
        self.counts: Counter[Place] = Counter()
        self._watched = watched
        self._ended = threading.Event()

    def run(self) -> None:
        """Sample until `stop` is called."""
        while not self._ended.wait(INTERVAL_SECONDS):
            frames = list_loading_frames(sys._current_frames().get(self._watched))
            self.looks += bool(frames)
            if (place := find_own_line(frames)) is not None:
                self.counts[place] += 1

    def stop(self) -> None:
        """Stop sampling, and wait for the end of the thread: workers are forked later."""
        self._ended.set()
        self.join()


def find_costly_lines(workload: LoadedWorkload) -> tuple[CostlyLine, ...]:
    """Load in this process for a moment, and return the lines that took most of it, the costliest first."""
    if workload.own is not None:  # which may load elsewhere
        return ()
    profiler = SamplingProfiler(threading.get_ident())
    deadline = time.perf_counter() + SECONDS
    profiler.start()
    try:
        with single_thread():
            for _ in build_plain_loader(workload, ROUND_BATCH_SIZE):
                if time.perf_counter() > deadline:
                    break
    except Exception:  # the trials will meet it and name it
        return ()
    finally:
        profiler.stop()
    return rank_lines(profiler.counts, profiler.looks)


def rank_lines(counts: Counter[Place], looks: int) -> tuple[CostlyLine, ...]:
    """Return the lines with the largest counts, as shares of all samples."""
    if looks < MIN_LOOKS:
        return ()
    ranked = [(place, count / looks) for place, count in counts.most_common(MAX_LINES)]
    return tuple(
        CostlyLine(file=file, line=line, function=name, source=linecache.getline(file, line).strip(), share=share)
        for (file, line, name), share in ranked
        if share >= MIN_SHARE
    )


def list_loading_frames(frame: FrameType | None) -> list[FrameType]:
    """Return the frames of a stack below torch's fetcher, the innermost first; empty if it does not load."""
    frames: list[FrameType] = []
    while frame is not None and not frame.f_code.co_filename.endswith(FETCH):
        frames.append(frame)
        frame = frame.f_back
    return [] if frame is None else frames


def find_own_line(frames: Sequence[FrameType]) -> Place | None:
    """Return the innermost line of the user's own code; None if there is none."""
    own = next((one for one in frames if not is_library(one.f_code.co_filename)), None)
    return None if own is None else (own.f_code.co_filename, own.f_lineno, own.f_code.co_name)

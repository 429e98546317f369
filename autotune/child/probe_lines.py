"""Which lines does loading spend its time in? They are looked up many times a second, beside rounds that are timed."""

from __future__ import annotations

import linecache
import os
import sys
import threading
import time
from collections import Counter
from types import FrameType
from typing import Final

from autotune.child.loader_building import build_plain_loader
from autotune.child.probe_workers import ROUND_BATCH_SIZE, single_thread
from autotune.child.workload_loading import LoadedWorkload
from autotune.system.code_places import is_library
from autotune.trial.workload_profile import CostlyLine

SECONDS: Final = 0.2
INTERVAL_SECONDS: Final = 2e-3  # from one look to the next
MIN_LOOKS: Final = 20  # of fewer no share is told
MAX_LINES: Final = 5
MIN_SHARE: Final = 0.05  # of loading; what takes less is not worth a look
FETCH: Final = os.path.join("torch", "utils", "data", "_utils", "fetch.py")  # noqa: PTH118  # the end of a path

Place = tuple[str, int, str]
"""File, line and function."""


class LineWatch(threading.Thread):
    """Counts in which lines a thread stands while it loads, until it is told to end."""

    def __init__(self, watched: int) -> None:
        super().__init__(daemon=True)
        self.counts: Counter[Place] = Counter()
        self._watched = watched
        self._ended = threading.Event()

    def run(self) -> None:
        """Look again and again."""
        while not self._ended.wait(INTERVAL_SECONDS):
            if (place := find_place(sys._current_frames().get(self._watched))) is not None:
                self.counts[place] += 1

    def end(self) -> None:
        """Stop looking, and wait until nothing of the thread is left: workers are forked later."""
        self._ended.set()
        self.join()


def find_costly_lines(workload: LoadedWorkload) -> tuple[CostlyLine, ...]:
    """Load in this process for a moment, and list the lines that took most of it, the costliest first."""
    if workload.own is not None:  # which may load elsewhere
        return ()
    watch = LineWatch(threading.get_ident())
    deadline = time.perf_counter() + SECONDS
    watch.start()
    try:
        with single_thread():
            for _ in build_plain_loader(workload, ROUND_BATCH_SIZE):
                if time.perf_counter() > deadline:
                    break
    except Exception:  # whatever it is, the trials will meet it and name it
        return ()
    finally:
        watch.end()
    return rank_lines(watch.counts)


def rank_lines(counts: Counter[Place]) -> tuple[CostlyLine, ...]:
    """Give the lines with the largest counts, as shares of all."""
    looks = counts.total()
    if looks < MIN_LOOKS:
        return ()
    ranked = [(place, count / looks) for place, count in counts.most_common(MAX_LINES)]
    return tuple(
        CostlyLine(file=file, line=line, function=name, source=linecache.getline(file, line).strip(), share=share)
        for (file, line, name), share in ranked
        if share >= MIN_SHARE
    )


def find_place(frame: FrameType | None) -> Place | None:
    """Find the innermost line of the user's in a stack that loads, else that of the dataset; None if nothing loads."""
    below: list[FrameType] = []
    while frame is not None and not frame.f_code.co_filename.endswith(FETCH):
        below.append(frame)
        frame = frame.f_back
    if frame is None or not below:
        return None
    own = next((one for one in below if not is_library(one.f_code.co_filename)), below[-1])
    return own.f_code.co_filename, own.f_lineno, own.f_code.co_name

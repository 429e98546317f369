"""Has the workers of a loader send an error in place of data that cannot be pickled; torch waits for it forever."""

from __future__ import annotations

import traceback
from multiprocessing.queues import Queue
from typing import Any, Final

UNSENT: Final = "(A worker could not send this to the training process.)"


def report_unsent_data() -> None:
    """Have each worker that this process starts do so, and this process if it is one."""
    Queue._on_queue_feeder_error = _send_error  # type: ignore[attr-defined]  # a hook of multiprocessing


def _send_error(queue: Queue[Any], error: Exception, lost: Any) -> None:
    from torch._utils import ExceptionWrapper
    from torch.utils.data import get_worker_info

    worker = get_worker_info()
    if worker is None or not isinstance(lost, tuple) or len(lost) != 2 or not isinstance(lost[0], int):
        traceback.print_exception(error)  # as multiprocessing does, in a queue of the user's own
        return
    number, data = lost
    if not isinstance(data, ExceptionWrapper):
        data = ExceptionWrapper((type(error), error, error.__traceback__), f"in DataLoader worker process {worker.id}")
    data.exc_type = RuntimeError  # the original class may be the one that cannot be pickled
    data.exc_msg = f"{data.exc_msg.rstrip()}\n{UNSENT}"
    queue.put((number, data))

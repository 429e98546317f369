"""Data that a worker cannot send, in the loader's queue and in one of the user's own."""

from __future__ import annotations

import multiprocessing
import threading
from functools import partial
from typing import Any

import pytest
from torch.utils.data import DataLoader

from autotune.system.worker_errors import UNSENT, report_unsent_data


def put_unsendable(queue: Any, worker: int) -> None:
    """Have a worker put what cannot be pickled, and what can be, into a queue of the user's own."""
    report_unsent_data()
    queue.put(("statistics", threading.Lock()))
    queue.put(("statistics", worker))


def test_only_the_queue_of_the_loader_gets_an_error(capfd: pytest.CaptureFixture[str]) -> None:
    queue: Any = multiprocessing.Queue()
    samples: Any = [threading.Lock()]
    init = partial(put_unsendable, queue)
    loader = DataLoader(samples, batch_size=None, num_workers=1, worker_init_fn=init)
    with pytest.raises(RuntimeError) as raised:
        next(iter(loader))
    assert str(raised.value).splitlines()[-2:] == ["TypeError: cannot pickle '_thread.lock' object", UNSENT]
    assert queue.get(timeout=60) == ("statistics", 0)
    assert "cannot pickle '_thread.lock' object" in capfd.readouterr().err

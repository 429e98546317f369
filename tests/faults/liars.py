"""Datasets that speak to the tuner in the name of the child that they run in."""

from __future__ import annotations

import contextlib
import os
import socket
from typing import Any

import torch
from torch.utils.data import Dataset

from autotune.trial.channel import MAX_MESSAGE_BYTES

LIES = {
    "noise": b"\x00\xff noise\n",
    "half a report": b'{"op": "measured"}\n',
    "no time": b'{"op": "measured", "measurement": {"epochs": [{"batch_seconds": [], "end_seconds": 0, '
    b'"wait_seconds": 0, "samples": 9, "promised_batches": 1, "closed_after": null}], "epoch_batches": 1, '
    b'"stopped": "done"}}\n',
    "depth": b"[" * 100_000 + b"\n",
    "a phase that is a number": b'{"op": "progress", "phase": 1e999, "batches": -1}\n',
    "an endless line": b"x" * (MAX_MESSAGE_BYTES + 2**20),
}


class Liar(Dataset[torch.Tensor]):
    """Says something false whenever a sample is asked of it."""

    def __init__(self, lie: str) -> None:
        self._lie = lie

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> Any:
        for descriptor in map(int, os.listdir("/proc/self/fd")):  # noqa: PTH208  # names, as numbers
            with contextlib.suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as line:
                if line.family == socket.AF_UNIX and line.type == socket.SOCK_STREAM:
                    line.sendall(LIES[self._lie])
        return torch.zeros(4)


def make_liar(lie: str) -> Liar:
    return Liar(lie)

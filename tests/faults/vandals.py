"""Datasets that spoil the file system under dltune, when they are told to."""

from __future__ import annotations

import contextlib
import os
import subprocess
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset


class Vandal(Dataset[torch.Tensor]):
    """Behaves, until a file appears.

    Args:
        folder: What it spoils: the mount point of a file system.
        trigger: The file whose appearance it waits for.
        how: `fill` leaves no byte free, `read-only` allows no more writing.
    """

    def __init__(self, folder: str, trigger: str, how: str) -> None:
        self._folder = Path(folder)
        self._trigger = trigger
        self._how = how
        self._is_done = False

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> Any:
        if not self._is_done and os.path.exists(self._trigger):  # noqa: PTH110  # as fast as can be
            self._is_done = True
            self._strike()
        return torch.full((16,), float(index))

    def _strike(self) -> None:
        if self._how == "fill":
            with contextlib.suppress(OSError), (self._folder / "filler").open("ab", buffering=0) as filler:
                while True:
                    filler.write(b"x" * 512)
        else:
            subprocess.run(["mount", "-o", "remount,ro", self._folder], check=True)


def make_vandal(folder: str, trigger: str, how: str) -> Vandal:
    return Vandal(folder, trigger, how)

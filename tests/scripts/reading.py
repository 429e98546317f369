"""Scripts that tests write, and what is made of them."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent
from types import ModuleType
from typing import Any

from autotune.scripts.finding import choose_loader
from autotune.scripts.slicing import slice_script
from autotune.scripts.source import Script, read_script
from autotune.scripts.writing import Factory, write_factory

IMPORTS = """
import argparse
import torch
from torch.utils.data import DataLoader, TensorDataset
"""
NUMBERS = "TensorDataset(torch.arange({}))"


def write_script(text: str, path: Path = Path("train.py")) -> Script:
    """Write a script with the usual imports into the current folder, and read it."""
    path.write_text(IMPORTS + dedent(text))
    return read_script(path)


def make_factory(text: str, line: int | None = None) -> Factory:
    """Write the factory of the loader that a script makes."""
    script = write_script(text)
    call = choose_loader(script, line)
    assert call is not None
    return write_factory(slice_script(script, call))


def call_factory(factory: Factory, **arguments: Any) -> Any:
    """Run a factory module, and call its function."""
    module = ModuleType("dltune_workload")
    exec(factory.text, vars(module))
    return module.make_loader(**arguments)


def make_loader(text: str, **arguments: Any) -> Any:
    """Make the loader of a script by its factory."""
    return call_factory(make_factory(text), **arguments)

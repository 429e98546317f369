"""The blocks of code on the pages are valid: Python runs, commands and options exist, data can be parsed."""

from __future__ import annotations

import ast
import re
import shlex
import warnings
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest
import torch
from torch import distributed
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import autotune
from autotune.cli.main import cli
from autotune.cli.options import build_request
from autotune.profiles.store import save_profile
from autotune.system.machine import read_machine
from tests.builders import make_config, make_profile
from tests.docs.markdown import (
    PAGES,
    REASON,
    ROOT,
    list_blocks,
    list_code_in_sentences,
    list_commands,
    name_page,
    read_page,
    split_command_line,
)

LANGUAGES = {"sh", "console", "python", "yaml", "json", "text"}
PLACEHOLDERS = {"COMMAND", "TARGET", "LABEL", "..."}  # in a sentence, for what the reader knows better
OURS = ("autotune", "benchmarks")
JOBS = ROOT / "examples" / "jobs"
WITH_PYTHON = [page for page in PAGES if any(not block.reason for block in list_blocks(page, "python"))]


class MultiEpochsDataLoader(DataLoader[Any]):
    """A loader class of the reader."""


def make_stand_ins() -> dict[str, Any]:
    """Return the objects of a reader by the names that the pages use."""
    dataset = TensorDataset(torch.zeros(64, 2))
    own: dict[str, Any] = dict.fromkeys(("dataset", "train_dataset", "val_dataset"), dataset)
    functions = {
        "make_dataset": lambda **_: dataset,
        "make_loader": lambda **settings: DataLoader(dataset, **settings),
        "step": lambda _: None,
    }
    classes = {"MultiEpochsDataLoader": MultiEpochsDataLoader, "DataLoader": DataLoader}
    beside = {"DistributedSampler": DistributedSampler, "self": SimpleNamespace(), "infos": ["a", "b"]}
    own |= {"__name__": "page", "autotune": autotune, "loader": DataLoader(dataset)}
    return {**own, **functions, **classes, **beside}


@pytest.fixture
def tuned_folder(workdir: Path) -> Path:
    """Run in a folder with a dltune.json for this machine."""
    hardware, config = read_machine().hardware(None), make_config()
    workload = make_profile().workload.model_copy(update={"dataset": "mypkg:make_loaders", "split": "train"})
    save_profile(workdir / "dltune.json", make_profile(hardware=hardware, config=config, workload=workload))
    return workdir


@pytest.fixture
def world_of_one(tmp_path: Path) -> Iterator[None]:
    """Initialize a process group of one process, as `torchrun --nproc-per-node 1` does."""
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/world", rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


@pytest.mark.usefixtures("tuned_folder", "world_of_one")
@pytest.mark.parametrize("page", WITH_PYTHON, ids=name_page)
def test_the_python_of_a_page_runs_from_its_first_block_to_its_last(page: Path) -> None:
    names = make_stand_ins()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for block in list_blocks(page, "python"):
            if not block.reason:
                exec(compile("\n" * block.line + block.text, name_page(page), "exec"), names)


@pytest.mark.parametrize("page", PAGES, ids=name_page)
def test_every_block_has_a_language_and_python_that_is_not_run_has_a_reason_and_is_valid(page: Path) -> None:
    blocks = list_blocks(page)
    assert [(block.line, block.language) for block in blocks if block.language not in LANGUAGES] == []
    marked = [block for block in blocks if block.reason]
    assert len(marked) == len(REASON.findall(read_page(page)))
    assert {block.language for block in marked} <= {"python"}
    assert all(ast.parse(block.text).body for block in blocks if block.language == "python")


def parse_call(words: list[str], *, is_whole: bool) -> None:
    """Parse the arguments after `dltune`; a whole call of `tune` must also make a valid request."""
    is_tuning = not words or words[0].startswith("-") or ":" in words[0]
    name, arguments = ("tune", words) if is_tuning else (words[0], words[1:])
    try:
        context = cli.commands[name].make_context(name, arguments)
    except click.exceptions.Exit:  # of --help
        return
    except click.MissingParameter:
        if is_whole:
            raise
        return
    if is_whole and name == "tune":
        options = context.params
        build_request(options if options["target"] is None else options | {"dataset": options["target"]})


def check_command(words: list[str], *, is_whole: bool = True) -> None:
    """Raise an error for a command that calls something of dltune that does not exist."""
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    match words:
        case ["dltune", *arguments]:
            parse_call(arguments, is_whole=is_whole)
        case ["make", *wanted]:
            assert set(wanted) <= set(targets), wanted
        case ["python" | ".venv/bin/python", "-m", module, *_] if module.startswith(OURS):
            assert find_spec(module) is not None, module
        case ["python" | ".venv/bin/python", script, *_] if script.startswith("examples/"):
            assert (ROOT / script).exists(), script


@pytest.mark.parametrize("page", PAGES, ids=name_page)
def test_every_command_in_a_block_or_a_sentence_is_valid(page: Path) -> None:
    for block in list_blocks(page, "sh", "console"):
        for words in list_commands(block):
            check_command(words)
    for text in list_code_in_sentences(page):
        for words in split_command_line(text) if text.startswith(("dltune ", "make ", "python ")) else ():
            if not PLACEHOLDERS & set(words):
                check_command(words, is_whole=False)


@pytest.mark.parametrize("path", sorted(JOBS.iterdir()), ids=lambda path: path.name)
def test_every_command_in_an_example_of_a_job_is_valid(path: Path) -> None:
    text = re.sub(r'"\$\{\w+:-(\w+)\}"', r"\1", path.read_text().replace("\\\n", " "))  # a variable by its default
    commands = re.findall(r"\bdltune (?:--|check|retune|report|merge)[^|&;#'`>\n]*", text)
    assert commands
    for command in commands:
        check_command(shlex.split(command))

"""One of several loaders or datasets is chosen by its name, and whoever names none is told the names."""

from __future__ import annotations

from typing import Any

import pytest
from torch.utils.data import TensorDataset

from autotune.child.loader import build_loader
from autotune.child.workload import choose_split
from autotune.child.workload import LoadedWorkload, load_workload, wrap_dataset
from autotune.errors import UsageError
from autotune.request import WorkloadRequest
from autotune.workload import Workload
from tests import own_loaders
from tests.builders import make_config

pytestmark = pytest.mark.usefixtures("leaves_nothing")


def load(name: str, split: str | None = None, *, is_loader: bool = False) -> LoadedWorkload:
    return load_workload(WorkloadRequest(dataset=f"tests.own_loaders:{name}", split=split, is_loader=is_loader))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (
            "make_several",
            r"several returned a dict of 2 loaders: 'val', 'train'\. Choose one with --split train\.",
        ),
        ("make_pair", r"returned a tuple of 2 loaders: '0', '1'\. Choose one with --split 0\."),
        ("make_datasets", r"returned a dict of 2 datasets: 'train', 'val'\. Choose one with --split train\."),
    ],
)
def test_several_are_answered_with_the_names_to_choose_from(name: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        load(name)


@pytest.mark.parametrize(
    ("name", "split", "samples"),
    [
        ("make_several", "val", 20),
        ("make_pair", "1", 20),
        ("make_datasets", "train", 60),
        ("make_several", "train", 60),
    ],
)
def test_the_one_that_is_named_is_tuned(name: str, split: str, samples: int) -> None:
    assert load(name, split).promised_samples == samples


def test_a_chosen_loader_of_the_users_own_class_is_made_again_as_it_was() -> None:
    loader = build_loader(load("make_several", "train"), make_config(0, batch_size=6))
    assert isinstance(loader, own_loaders.Doubling)
    assert len(list(loader)) == 10


@pytest.mark.parametrize(
    ("name", "split", "words"),
    [
        ("make_several", "trian", r"^--split trian: .* 'val', 'train'\. Choose one of these\."),
        ("make_named", "train", r"^--split train: .*OnlyNamed, and not several .* Leave --split out\."),
        ("make_nested", "train", r"^--split train: .* has 2 datasets by that name\. Return one level of names\."),
        ("make_samples", "0", r"^--split 0: .* a list, and not several .* Leave --split out\."),
    ],
)
def test_a_name_that_chooses_nothing_is_refused(name: str, split: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        load(name, split)


def test_a_list_of_samples_is_one_dataset() -> None:
    assert load("make_samples").promised_samples == 4


def test_a_name_that_the_shell_would_take_apart_is_quoted() -> None:
    with pytest.raises(UsageError, match=r"--split 'train set'\.$"):
        choose_split({"train set": TensorDataset(), "test set": TensorDataset()}, None, "pkg:make")


def test_a_workload_of_several_datasets_is_refused() -> None:
    several: Any = {"train": own_loaders.Numbers()}
    with pytest.raises(UsageError, match="gave a dict as one dataset"):
        wrap_dataset(Workload(dataset=several), "pkg:make")


# Functions of the settings


@pytest.mark.parametrize(("split", "batches"), [("train", 15), ("val", 3)])
def test_of_the_loaders_that_a_function_makes_the_named_one_is_taken_each_time(split: str, batches: int) -> None:
    workload = load("make_several_of_settings", split, is_loader=True)
    loader = build_loader(workload, make_config(0, batch_size=4))
    assert isinstance(loader, own_loaders.Doubling) is (split == "train")
    assert len(list(loader)) == batches


def test_a_function_that_makes_several_is_answered_with_their_names() -> None:
    with pytest.raises(UsageError, match=r"a dict of 2 loaders: 'train', 'val'\. Choose one with --split train"):
        load("make_several_of_settings", is_loader=True)


def test_a_function_that_makes_one_loader_has_nothing_to_choose_from() -> None:
    with pytest.raises(UsageError, match=r"--split train: .* Leave --split out"):
        load_workload(WorkloadRequest(dataset="tests.own_loaders:make_batches", split="train", is_loader=True))

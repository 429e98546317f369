"""Code to paste runs unchanged."""

from __future__ import annotations

from typing import Any, Literal

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

from autotune.config import LoaderConfig, ProcessSettings
from autotune.profiles.schema import TunedProfile
from autotune.report.sections import load_code, plain_code
from autotune.settings import SETTINGS, config_from_values, setting_values
from tests.builders import make_config, make_hardware, make_profile, make_profile_result


class Stream(IterableDataset[int]):
    def __iter__(self) -> Any:
        return iter(range(10))


def make_workload_profile(config: LoaderConfig | None = None, **workload: Any) -> TunedProfile:
    profile = make_profile(config=config or make_config(0, batch_size=4))
    return profile.model_copy(update={"workload": profile.workload.model_copy(update=workload)})


@pytest.mark.parametrize(("kind", "dataset"), [("map", list(range(10))), ("iterable", Stream())])
def test_plain_code_makes_a_loader_for_the_kind_of_dataset(kind: Literal["map", "iterable"], dataset: Any) -> None:
    code = plain_code(make_workload_profile(kind=kind))
    names: dict[str, Any] = {"dataset": dataset, "DataLoader": DataLoader, "torch": torch}
    exec(code, names)
    assert sum(len(batch) for batch in names["loader"]) == 10
    assert ("shuffle=True" in code) == (kind == "map")
    assert ("shuffle=True" in load_code(make_workload_profile(kind=kind), "dltune.json")) == (kind == "map")


@pytest.mark.parametrize("name", SETTINGS)
def test_every_setting_that_is_not_the_default_appears_in_plain_code(name: str) -> None:
    usual = setting_values(make_config(4, pin_memory=True))
    value = next(choice for choice in reversed(SETTINGS[name].choices) if choice != SETTINGS[name].default)
    code = plain_code(make_profile(config=config_from_values({**usual, name: value})))
    line = (SETTINGS[name].setup or f"{name}={{value!r}}").format(value=value)
    assert line in code or "autotune.device_prefetch" in code


def test_batches_of_the_users_own_are_an_argument() -> None:
    own = make_config(2, batch_size=None)
    assert "DataLoader(dataset, batch_sampler=batch_sampler, num_workers=2" in plain_code(make_workload_profile(own))
    assert "make_loader(dataset, batch_size=None)" in load_code(make_workload_profile(own, kind="iterable"), "a.json")


def test_arguments_of_a_loader_that_the_factory_returned_are_kept() -> None:
    profile = make_workload_profile(make_config(2, batch_size=4), gives_loader=True, nproc_per_node=2)
    code = plain_code(profile)
    assert code.startswith("loader = DataLoader(..., batch_size=4, num_workers=2, ")
    assert "pin_memory=False" in code  # its own may be another value
    assert "sampler" not in code
    assert load_code(profile, "a.json") == 'import autotune\nloader = autotune.load("a.json").apply_to(loader)'


def test_a_data_module_is_tuned_as_a_whole() -> None:
    profile = make_workload_profile(make_config(2), gives_loader=True, is_from_data_module=True)
    assert load_code(profile, "a.json") == 'import autotune\ndatamodule = autotune.load("a.json").apply_to(datamodule)'


def test_a_loader_that_a_library_has_made_is_tuned_by_the_librarys_arguments() -> None:
    trained = make_workload_profile(make_config(2, batch_size=4), gives_loader=True, prepared_by="transformers")
    code = plain_code(trained)
    assert code.startswith("arguments = TrainingArguments(..., dataloader_num_workers=2, ")
    assert "per_device_train_batch_size=4" in code
    assert load_code(trained, "a.json").endswith('TrainingArguments(..., **autotune.load("a.json").kwargs_for("hf"))')
    prepared = make_workload_profile(make_config(2), gives_loader=True, prepared_by="accelerate")
    assert load_code(prepared, "a.json").endswith('accelerator.prepare(autotune.load("a.json").apply_to(loader))')


def test_several_processes_get_a_distributed_sampler() -> None:
    assert "sampler=DistributedSampler(dataset)" in plain_code(make_workload_profile(nproc_per_node=2))


@pytest.mark.parametrize(
    ("loader", "plain", "loaded"),
    [
        ("timm.data.loader.MultiEpochsDataLoader", "MultiEpochsDataLoader(**your", "(MultiEpochsDataLoader, **your"),
        ("pyg.loader.DataLoader", "pyg.loader.DataLoader(**your", "(pyg.loader.DataLoader, **your"),
        ("mypkg.data:make_loader", "make_loader(root='/data', batch_size=4", "make_loader(make_loader, root='/data')"),
        ("x(); import os; f", "make_loader(**your", "(make_loader, **your"),
        ("__import__('os').system('id').DataLoader", "make_loader(**your", "(make_loader, **your"),
    ],
)
def test_a_loader_of_the_users_own_is_called_by_its_name(loader: str, plain: str, loaded: str) -> None:
    workload = {"loader_class": loader, "loader_decides": ("in_order", "pin_memory"), "dataset_args": {"root": "/data"}}
    profile = make_workload_profile(make_config(2, batch_size=4, pin_memory=True), **workload)
    assert f"loader = {plain}" in plain_code(profile)
    assert "pin_memory" not in plain_code(profile)
    assert "persistent_workers=False" in plain_code(profile)  # its own default may be another one
    assert loaded in load_code(profile, "dltune.json")


def test_plain_code_without_workers_sets_what_the_users_loader_has_for_its_workers() -> None:
    baseline = make_profile_result().baseline
    assert baseline is not None
    process = ProcessSettings(multiprocessing_context="spawn")
    own = make_config(2, 4, process=process, persistent_workers=True, in_order=False)
    profile = make_workload_profile(gives_loader=True)
    result = make_profile_result(baseline=baseline.model_copy(update={"config": own}))
    code = plain_code(profile.model_copy(update={"result": result})).replace("...", "given, own")
    given: dict[str, Any] = {"prefetch_factor": 4, "multiprocessing_context": "spawn", "persistent_workers": True}
    names: dict[str, Any] = {
        "DataLoader": lambda dataset, own, **settings: DataLoader(dataset, **own | settings),
        "given": list(range(10)),
        "own": given | {"in_order": False, "num_workers": 2},
    }
    exec(code, names)
    assert next(iter(names["loader"])).tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(("split", "choice"), [("train", "['train']"), ("0", "[0]")])
def test_one_of_several_loaders_of_a_function_is_selected(split: str, choice: str) -> None:
    profile = make_workload_profile(loader_class="mypkg.data:make_loaders", split=split)
    assert plain_code(profile).endswith(f"){choice}")
    assert load_code(profile, "dltune.json").endswith(f"make_loader(make_loaders){choice}")


def test_a_label_selects_the_profile_and_no_label_selects_by_machine() -> None:
    assert 'autotune.load("a \\"b\\".json").make' in load_code(make_profile(), 'a "b".json')
    assert 'autotune.load("dønnées 😀.json").make' in load_code(make_profile(), "dønnées 😀.json")
    assert 'autotune.load("x", profile="mine").make' in load_code(make_profile(label="mine"), "x")


def test_copies_to_the_device_are_part_of_the_code() -> None:
    gpu = make_hardware(gpu="NVIDIA H100", gpu_count=1)
    ahead = make_profile(process=ProcessSettings(non_blocking=True, device_prefetch=True), hardware=gpu)
    for code in (plain_code(ahead), load_code(ahead, "dltune.json")):
        assert code.startswith("import autotune\n")
        assert code.endswith("\nloader = autotune.device_prefetch(loader, device)")
    assert "non_blocking=True" in plain_code(make_profile(process=ProcessSettings(non_blocking=True), hardware=gpu))
    assert "non_blocking" not in plain_code(make_profile(process=ProcessSettings(non_blocking=True)))

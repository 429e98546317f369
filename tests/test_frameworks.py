"""The loader of each library in a real, short training has the tuned settings."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import warnings
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import pytest
import torch
import yaml
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    SequentialSampler,
    TensorDataset,
    WeightedRandomSampler,
    default_collate,
)

from autotune.config import LoaderConfig, ProcessSettings
from autotune.errors import UsageError
from autotune.profiles.load import TunedLoader
from tests.builders import make_config, make_profile, write_profiles
from tests.profiles.test_load import make_hardware_here

ROOT = Path(__file__).parent.parent
SAMPLES = 64
TUNED = make_config(2, 5, 8, ProcessSettings(non_blocking=True), pin_memory=True, persistent_workers=True)
PLAIN = make_config(0, batch_size=16)
SPAWNED = make_config(2, 4, 8, ProcessSettings(multiprocessing_context="spawn"), in_order=False)
EACH = pytest.mark.parametrize("config", [TUNED, PLAIN, SPAWNED], ids=["tuned", "plain", "spawned"])
SETTINGS = ("num_workers", "pin_memory", "persistent_workers", "in_order", "prefetch_factor")
QUIET = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
pytestmark = [
    pytest.mark.slow,  # real training in libraries that only `make test-all` installs
    pytest.mark.filterwarnings("ignore:'pin_memory' argument is set as true but no accelerator:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*'train_dataloader'"),  # what Lightning recommends
    pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated:FutureWarning"),  # of Lightning
    pytest.mark.usefixtures("offline"),
]


def make_tuned(config: LoaderConfig = TUNED, **workload: Any) -> TunedLoader:
    profile = make_profile(dataloader=config.dataloader, process=config.process)
    profile = profile.model_copy(update={"workload": profile.workload.model_copy(update=workload)})
    return TunedLoader(profile, config)


def check_settings(loader: Any, config: LoaderConfig) -> None:
    """Check that a loader has the tuned settings."""
    tuned = config.dataloader
    assert {name: getattr(loader, name) for name in SETTINGS} == {name: getattr(tuned, name) for name in SETTINGS}
    method = loader.multiprocessing_context and loader.multiprocessing_context.get_start_method()
    assert method == config.process.multiprocessing_context


def make_numbers() -> TensorDataset:
    return TensorDataset(torch.arange(float(SAMPLES)))


def list_seen(loader: Any) -> list[float]:
    return [number for batch in loader for number in batch[0].tolist()]


class Regression(torch.nn.Module):
    """A weight that records its batch sizes, and returns its loss as transformers expects it."""

    def __init__(self) -> None:
        super().__init__()
        self._layer = torch.nn.Linear(1, 1)
        self.batch_sizes: list[int] = []

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        self.batch_sizes.append(len(x))
        return {"loss": (self._layer(x) - labels).square().mean()}


@pytest.mark.usefixtures("fresh_accelerate")
@EACH
def test_a_trainer_of_transformers_trains_with_the_tuned_settings(config: LoaderConfig, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    loaders = []

    class Look(transformers.TrainerCallback):  # type: ignore[misc, name-defined]  # its types are not read
        def on_step_end(self, *_: Any, train_dataloader: Any, **__: Any) -> None:
            loaders.append(train_dataloader)

    quiet = {"report_to": "none", "save_strategy": "no", "disable_tqdm": True, "output_dir": str(tmp_path)}
    arguments = transformers.TrainingArguments(max_steps=2, **quiet, **make_tuned(config).kwargs_for("hf"))
    model, rows = Regression(), [{"x": [float(n)], "labels": [2.0 * n]} for n in range(SAMPLES)]
    trainer = transformers.Trainer(model=model, args=arguments, train_dataset=rows, callbacks=[Look()])
    trainer.train()
    check_settings(loaders[-1], config)
    assert model.batch_sizes == [config.dataloader.batch_size] * 2
    assert trainer.accelerator.non_blocking == config.process.non_blocking


@pytest.mark.usefixtures("fresh_accelerate")
@EACH
def test_a_loop_under_accelerate_trains_with_the_tuned_settings(config: LoaderConfig) -> None:
    accelerate = pytest.importorskip("accelerate")
    tuned, layer = make_tuned(config), torch.nn.Linear(1, 1)
    plan = accelerate.utils.DataLoaderConfiguration(**tuned.kwargs_for("accelerate"))
    accelerator = accelerate.Accelerator(cpu=True, dataloader_config=plan)
    optimizer = torch.optim.SGD(layer.parameters(), lr=1e-6)
    made = tuned.make_loader(make_numbers(), shuffle=True)
    layer, optimizer, loader = accelerator.prepare(layer, optimizer, made)
    for (numbers,), _ in zip(loader, range(2), strict=False):
        accelerator.backward(layer(numbers.unsqueeze(1)).square().mean())
        optimizer.step()
        assert len(numbers) == config.dataloader.batch_size
    check_settings(loader, config)
    assert accelerator.non_blocking == config.process.non_blocking
    assert accelerator.split_batches is False


# Lightning


def fit(model: Any, *data: Any) -> DataLoader[Any]:
    """Train for two steps, and return the loader that the Trainer trained with."""
    pytorch = pytest.importorskip("lightning.pytorch")
    trainer = pytorch.Trainer(max_steps=2, accelerator="cpu", **QUIET)
    trainer.fit(model, *data)
    assert trainer.global_step == 2
    loader: DataLoader[Any] = trainer.train_dataloader
    return loader


def make_module(loader: Any) -> Any:
    """Make a data module whose training loader is the given one, made by the user in the usual way."""
    lightning = pytest.importorskip("lightning.pytorch")

    class Numbers(lightning.LightningDataModule):  # type: ignore[misc, name-defined]  # its types are not read
        def train_dataloader(self) -> Any:
            return loader

    return Numbers()


@EACH
def test_a_data_module_of_lightning_trains_with_the_tuned_settings(config: LoaderConfig) -> None:
    modules = pytest.importorskip("tests.data_modules")
    loader = fit(modules.Idle(), make_tuned(config).apply_to(modules.Numbers()))
    check_settings(loader, config)
    assert loader.batch_size == config.dataloader.batch_size
    assert loader.drop_last is True


def test_a_model_of_lightning_that_hands_out_its_data_itself_trains_with_them() -> None:
    modules = pytest.importorskip("tests.data_modules")

    class Whole(modules.Idle):  # type: ignore[misc, name-defined]  # found at run time
        def train_dataloader(self) -> Any:
            return DataLoader(make_numbers(), batch_size=4, shuffle=True)

    check_settings(fit(make_tuned().apply_to(Whole())), TUNED)


def test_sampler_collate_function_and_generator_are_unchanged_in_training() -> None:
    modules = pytest.importorskip("tests.data_modules")
    sampler, generator = WeightedRandomSampler([1.0] * SAMPLES, 32), torch.Generator()
    collate = partial(default_collate)
    plain = DataLoader(make_numbers(), 4, sampler=sampler, collate_fn=collate, generator=generator, timeout=60)
    loader = fit(modules.Idle(), make_tuned().apply_to(make_module(plain)))
    assert (loader.sampler, loader.collate_fn, loader.generator) == (sampler, collate, generator)
    assert (loader.timeout, loader.batch_size, len(loader)) == (60, 8, 4)


def test_of_several_loaders_the_one_that_was_tuned_gets_the_settings() -> None:
    several = {"left": DataLoader(make_numbers()), "right": DataLoader(make_numbers())}
    found = make_tuned(split="right").apply_to(make_module(several)).train_dataloader()
    assert found["left"] is several["left"]
    check_settings(found["right"], TUNED)
    in_order = make_tuned(split="1").apply_to(make_module([*several.values()])).train_dataloader()
    assert (in_order[0].num_workers, in_order[1].num_workers) == (0, 2)


def test_of_a_combined_loader_the_one_that_was_tuned_gets_the_settings() -> None:
    combined = pytest.importorskip("tests.data_modules").make_combined()
    found = make_tuned(split="right").apply_to(make_module(combined)).train_dataloader()
    check_settings(found.iterables["right"], TUNED)
    assert found.iterables["left"].num_workers == 0


def test_several_loaders_of_which_none_was_tuned_are_rejected() -> None:
    module = make_tuned(split="train").apply_to(make_module({"left": DataLoader(make_numbers())}))
    with pytest.raises(UsageError, match="dict is not a DataLoader and contains none named train"):
        module.train_dataloader()


RANKS = """
import json, sys
from pathlib import Path
from lightning.pytorch import LightningDataModule, Trainer
from torch.utils.data import DataLoader
from tests.data_modules import Idle
from tests.test_frameworks import QUIET, TUNED, check_settings, make_numbers, make_tuned

class Numbers(LightningDataModule):
    def train_dataloader(self):
        return DataLoader(make_numbers(), batch_size=4, shuffle=True, drop_last=True)

if __name__ == "__main__":
    trainer = Trainer(max_steps=2, accelerator="cpu", devices=2, strategy="ddp", **QUIET)
    trainer.fit(Idle(), make_tuned().apply_to(Numbers()))
    loader = trainer.train_dataloader
    check_settings(loader, TUNED)
    assert (type(loader.sampler).__name__, loader.batch_size, loader.drop_last) == ("DistributedSampler", 8, True)
    Path(sys.argv[1], str(trainer.global_rank)).write_text(json.dumps(list(loader.sampler)))
"""


def test_lightning_shares_the_samples_among_processes_whose_loaders_have_the_tuned_settings(tmp_path: Path) -> None:
    pytest.importorskip("tests.data_modules")
    script = tmp_path / "train.py"
    script.write_text(RANKS)
    environ = os.environ | {"PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, script, tmp_path], env=environ, check=True, capture_output=True, timeout=300)
    shares = [json.loads((tmp_path / str(rank)).read_text()) for rank in range(2)]
    assert sorted(shares[0] + shares[1]) == list(range(SAMPLES))


@pytest.mark.parametrize("names_class", [False, True])
def test_lightnings_cli_gives_the_settings_to_a_data_module_whose_class_the_file_may_name(
    names_class: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    modules = pytest.importorskip("tests.data_modules")
    from lightning.pytorch.cli import LightningCLI, LightningDataModule

    path, options = "examples.lightning_module.TableModule", {"rows": SAMPLES, **make_tuned().kwargs_for("lightning")}
    data = {"class_path": path, "init_args": options} if names_class else options
    (tmp_path / "config.yaml").write_text(yaml.safe_dump({"data": data}))
    monkeypatch.setattr("sys.argv", ["train.py", "--config", str(tmp_path / "config.yaml")])
    monkeypatch.setenv("JSONARGPARSE_DEPRECATION_WARNINGS", "off")  # Lightning 2.6 calls what 4.53 renamed
    module = LightningDataModule if names_class else resolve_name(path)
    trainer = {"accelerator": "cpu", **QUIET}
    kwargs = {"run": False, "save_config_callback": None, "seed_everything_default": False, "trainer_defaults": trainer}
    cli = LightningCLI(modules.Idle, module, subclass_mode_data=names_class, **kwargs)
    cli.datamodule.prepare_data()
    cli.datamodule.setup("fit")
    check_settings(cli.datamodule.train_dataloader(), TUNED)


# Any loader


def test_a_ready_loader_keeps_its_samples_and_gets_the_settings() -> None:
    loader = make_tuned().apply_to(DataLoader(make_numbers(), batch_size=4))
    check_settings(loader, TUNED)
    assert list_seen(loader) == list_seen(DataLoader(make_numbers()))


def test_batch_samplers_single_samples_and_batch_sizes_that_were_not_tuned_are_unchanged() -> None:
    batches = BatchSampler(SequentialSampler(make_numbers()), 3, drop_last=False)
    by_sampler = make_tuned().apply_to(DataLoader(make_numbers(), batch_sampler=batches))
    one_by_one = make_tuned().apply_to(DataLoader(make_numbers(), batch_size=None))
    assert (by_sampler.batch_sampler, by_sampler.num_workers) == (batches, 2)
    assert (one_by_one.batch_sampler, one_by_one.batch_size, one_by_one.num_workers) == (None, None, 2)
    ready = DataLoader(make_numbers(), batch_size=16)
    assert make_tuned(make_config(2, batch_size=None)).apply_to(ready).batch_size == 16
    assert make_tuned(loader_decides=("batch_size",)).apply_to(ready).batch_size == 16
    ready = DataLoader(make_numbers(), num_workers=1, prefetch_factor=7, persistent_workers=True, pin_memory=True)
    decided = ("num_workers", "prefetch_factor", "persistent_workers", "pin_memory")
    kept = make_tuned(loader_decides=decided).apply_to(ready)
    assert [getattr(kept, name) for name in decided] == [1, 7, True, True]


def test_arguments_that_need_workers_are_dropped_if_no_workers_were_tuned() -> None:
    ready = DataLoader(make_numbers(), num_workers=1, timeout=60, multiprocessing_context="fork")
    loader = make_tuned(PLAIN).apply_to(ready)
    check_settings(loader, PLAIN)
    assert len(list_seen(loader)) == SAMPLES


def test_a_start_method_is_kept_if_none_was_tuned_and_an_argument_of_the_caller_replaces_the_setting() -> None:
    ready = DataLoader(make_numbers(), num_workers=1, multiprocessing_context="spawn")
    loader = make_tuned().apply_to(ready, batch_size=3)
    assert loader.multiprocessing_context.get_start_method() == "spawn"
    assert (loader.batch_size, loader.num_workers) == (3, 2)


def test_a_class_with_its_own_constructor_is_rejected_with_the_call_of_make_loader() -> None:
    from tests.custom_loaders import PicksItsPrefetch

    ready = PicksItsPrefetch(make_numbers())
    with pytest.raises(
        UsageError,
        match=r"PicksItsPrefetch has its own constructor.*make_loader\(tests\.custom_loaders\.PicksItsPrefetch",
    ):
        make_tuned().apply_to(ready)
    with pytest.raises(UsageError, match="TensorDataset is not a DataLoader"):
        make_tuned().apply_to(make_numbers())


# timm: importing timm.data needs torchvision, so its loader factory is taken out of its source.


def take_create_loader() -> Any:
    """Compile timm's loader module without its imports of other parts of timm."""
    spec = find_spec("timm")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("timm is not installed")
    path = Path(spec.submodule_search_locations[0], "data", "loader.py")
    body = ast.parse(path.read_text()).body
    of_timm = [node for node in body if isinstance(node, ast.ImportFrom) and node.level]
    names: dict[str, Any] = {alias.name: type(alias.name, (), {}) for node in of_timm for alias in node.names}
    names |= dict.fromkeys(("IMAGENET_DEFAULT_MEAN", "IMAGENET_DEFAULT_STD"), (0.5,))
    names["create_transform"] = lambda *_, **__: None
    rest = ast.Module([node for node in body if node not in of_timm], [])
    exec(compile(rest, str(path), "exec"), names)
    return names["create_loader"]


@EACH
def test_timms_own_loader_trains_with_the_settings_that_it_supports(config: LoaderConfig) -> None:
    create_loader = take_create_loader()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        kwargs = make_tuned(config).kwargs_for("timm")
    images = TensorDataset(torch.zeros(SAMPLES, 3, 8, 8, dtype=torch.uint8), torch.arange(SAMPLES) % 2)
    loader = create_loader(images, input_size=(3, 8, 8), is_training=True, device=torch.device("cpu"), **kwargs)
    layer = torch.nn.Linear(3 * 8 * 8, 2)
    optimizer = torch.optim.SGD(layer.parameters(), lr=1e-6)
    for (batch, labels), _ in zip(loader, range(2), strict=False):
        torch.nn.functional.cross_entropy(layer(batch.flatten(1)), labels).backward()
        optimizer.step()
        assert len(batch) == config.dataloader.batch_size
    lost = {str(one.message).partition("=")[0] for one in caught}
    kept = [name for name in SETTINGS if getattr(loader.loader, name) == getattr(config.dataloader, name)]
    assert kept == [name for name in SETTINGS if name not in lost]


# torchdata


@pytest.mark.filterwarnings("ignore")  # of what torchdata deprecates, and of settings that it does not support
@EACH
def test_torchdatas_stateful_loader_has_the_tuned_settings(config: LoaderConfig) -> None:
    torchdata = pytest.importorskip("torchdata.stateful_dataloader")
    kwargs = make_tuned(config).kwargs_for("statefuldataloader")
    loader = torchdata.StatefulDataLoader(make_numbers(), **kwargs)
    check_settings(loader, config)
    assert loader.batch_size == config.dataloader.batch_size


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")
def test_a_stateful_loader_resumes_where_it_stopped() -> None:
    torchdata = pytest.importorskip("torchdata.stateful_dataloader")
    kwargs = make_tuned(make_config(2, 2, 8)).kwargs_for("statefuldataloader")
    first, resumed = (torchdata.StatefulDataLoader(make_numbers(), **kwargs) for _ in range(2))
    batches = iter(first)
    seen = [number for _ in range(3) for number in next(batches)[0].tolist()]
    resumed.load_state_dict(first.state_dict())
    assert seen + list_seen(resumed) == list_seen(DataLoader(make_numbers()))


# What a library has no place for


def test_a_setting_that_a_library_does_not_support_is_named_in_a_warning_at_the_call() -> None:
    with pytest.warns(UserWarning, match="non_blocking=True is not supported by torchdata") as caught:
        make_tuned().kwargs_for("statefuldataloader")
    assert [one.filename for one in caught] == [__file__]


def test_applied_to_a_module_only_the_copies_ahead_are_lost() -> None:
    process = ProcessSettings(non_blocking=True, device_prefetch=True, sharing_strategy="file_system")
    tuned = make_tuned(make_config(2, 2, 8, process, pin_memory=True))
    with pytest.warns(UserWarning, match="device_prefetch=True: iterate over autotune.device_prefetch") as caught:
        tuned.apply_to(make_module(DataLoader(make_numbers())))
    assert [one.filename for one in caught] == [__file__]


# The page


def list_blocks() -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", (ROOT / "docs" / "frameworks.md").read_text(), re.DOTALL | re.MULTILINE)


def make_names(library: str) -> dict[str, Any]:
    """Make what a block of the page takes for granted."""
    if library == "transformers":
        return {"model": Regression(), "dataset": [{"x": [float(n)], "labels": [n]} for n in range(SAMPLES)]}
    if library == "lightning":
        modules = pytest.importorskip("tests.data_modules")
        return {"model": modules.Idle(), "datamodule": modules.Numbers()}
    return {"dataset": make_numbers()}


@pytest.mark.usefixtures("fresh_accelerate")
@pytest.mark.filterwarnings("ignore")  # what a library says of the small things that the page leaves out
@pytest.mark.parametrize("library", ["lightning", "transformers", "accelerate", "torchdata"])
def test_the_block_of_the_page_runs(library: str, workdir: Path) -> None:
    pytest.importorskip(library)
    write_profiles(workdir, make_profile(hardware=make_hardware_here(), dataloader=make_config(2, 2, 8).dataloader))
    first, (block,) = list_blocks()[0], [block for block in list_blocks() if f"from {library}" in block]
    names = make_names(library)
    exec(first, names)
    exec(block, names)
    loader = names.get("loader") or getattr(names.get("trainer"), "train_dataloader", None)
    assert loader is None or loader.num_workers == 2

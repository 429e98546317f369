"""Every export, loaded by the library that it is for: the loader that comes out has the tuned settings."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch.utils.data import DataLoader, TensorDataset

from autotune.config import LoaderConfig, ProcessSettings
from autotune.profiles.export import Target
from tests.builders import make_config
from tests.profiles.test_export import export_config

DATA = TensorDataset(torch.arange(64.0))
PLAIN = make_config(0, batch_size=16)
TUNED = make_config(2, 5, 8, pin_memory=True, persistent_workers=True)
SPAWNED = make_config(2, 4, 8, ProcessSettings(multiprocessing_context="spawn"), in_order=False)
CONFIGS = {"plain": PLAIN, "tuned": TUNED, "spawned": SPAWNED}
SETTINGS = ("num_workers", "pin_memory", "persistent_workers", "in_order", "prefetch_factor")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:'pin_memory' argument is set as true but no accelerator:UserWarning"),
    pytest.mark.usefixtures("offline"),
]


@pytest.fixture(params=list(CONFIGS.values()), ids=list(CONFIGS))
def config(request: pytest.FixtureRequest) -> LoaderConfig:
    found: LoaderConfig = request.param
    return found


def write_export(folder: Path, config: LoaderConfig, to: Target) -> Path:
    path = folder / f"{to}.txt"
    path.write_text(export_config(config, to).text)
    return path


def check_settings(loader: Any, config: LoaderConfig) -> None:
    """Check that a loader has the tuned settings."""
    tuned = config.dataloader
    assert {name: getattr(loader, name) for name in SETTINGS} == {name: getattr(tuned, name) for name in SETTINGS}
    method = loader.multiprocessing_context and loader.multiprocessing_context.get_start_method()
    assert method == config.process.multiprocessing_context


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")  # torchdata 0.11 calls it
def test_torchdata_takes_the_dict_and_its_snapshots_stay_as_they_are(config: LoaderConfig) -> None:
    from torchdata.stateful_dataloader import StatefulDataLoader

    loader = StatefulDataLoader(DATA, **ast.literal_eval(export_config(config, "statefuldataloader").text))
    check_settings(loader, config)
    assert loader.batch_size == config.dataloader.batch_size
    assert loader.snapshot_every_n_steps == StatefulDataLoader(DATA).snapshot_every_n_steps


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")
def test_a_stateful_loader_of_an_export_resumes_where_it_stopped() -> None:
    from torchdata.stateful_dataloader import StatefulDataLoader

    kwargs = ast.literal_eval(export_config(make_config(2, 2, 8), "statefuldataloader").text)
    first = StatefulDataLoader(DATA, **kwargs)
    batches = iter(first)
    seen = [next(batches) for _ in range(3)]
    resumed = StatefulDataLoader(DATA, **kwargs)
    resumed.load_state_dict(first.state_dict())
    rest = list(resumed)
    delivered = torch.cat([batch[0] for batch in (*seen, *rest)])
    assert delivered.tolist() == DATA.tensors[0].tolist()


@pytest.mark.usefixtures("fresh_accelerate")
def test_the_trainer_of_transformers_loads_with_what_its_own_parser_read(config: LoaderConfig, tmp_path: Path) -> None:
    from transformers import HfArgumentParser, Trainer, TrainingArguments

    (arguments,) = HfArgumentParser(TrainingArguments).parse_yaml_file(str(write_export(tmp_path, config, "hf")))
    arguments.output_dir = str(tmp_path)
    trainer = Trainer(model=torch.nn.Linear(1, 1), args=arguments, train_dataset=DATA)
    loader = trainer.get_train_dataloader()
    check_settings(loader, config)
    assert loader.total_batch_size == config.dataloader.batch_size  # of all processes; there is one


@pytest.mark.usefixtures("fresh_accelerate")
def test_accelerate_takes_its_configuration_and_keeps_the_loaders_arguments(config: LoaderConfig) -> None:
    from accelerate import Accelerator
    from accelerate.utils import DataLoaderConfiguration

    found = DataLoaderConfiguration(**ast.literal_eval(export_config(config, "accelerate").text))
    accelerator = Accelerator(cpu=True, dataloader_config=found)
    loader = accelerator.prepare(DataLoader(DATA, **config.loader_kwargs()))
    check_settings(loader, config)
    assert loader.total_batch_size == config.dataloader.batch_size  # of all processes; there is one
    assert accelerator.non_blocking == config.process.non_blocking
    assert accelerator.split_batches is False


def run_lightning_cli(monkeypatch: pytest.MonkeyPatch, *arguments: str, **options: Any) -> DataLoader[Any]:
    """Run a training script up to its loader, as `python train.py --config FILE` does."""
    from lightning.pytorch.cli import LightningCLI

    from tests.data_modules import Idle

    monkeypatch.setattr("sys.argv", ["train.py", *arguments])
    monkeypatch.setenv("JSONARGPARSE_DEPRECATION_WARNINGS", "off")  # Lightning 2.6 calls what 4.53 renamed
    quiet = {"accelerator": "cpu", "logger": False, "enable_checkpointing": False}
    cli = LightningCLI(
        Idle, run=False, save_config_callback=None, seed_everything_default=False, trainer_defaults=quiet, **options
    )
    cli.datamodule.prepare_data()
    cli.datamodule.setup("fit")
    loader: DataLoader[Any] = cli.datamodule.train_dataloader()
    return loader


def test_lightnings_cli_gives_the_settings_to_a_data_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from examples.lightning_module import TableModule

    path = write_export(tmp_path, TUNED, "lightning")
    arguments = ("--config", str(path), "--data.rows", "64")
    loader = run_lightning_cli(monkeypatch, *arguments, datamodule_class=TableModule)
    check_settings(loader, TUNED)
    assert loader.batch_size == TUNED.dataloader.batch_size


def test_the_settings_belong_under_init_args_where_the_config_names_the_class(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lightning.pytorch import LightningDataModule

    settings = yaml.safe_load(export_config(TUNED, "lightning").text)["data"]
    whole = {"data": {"class_path": "examples.lightning_module.TableModule", "init_args": {"rows": 64, **settings}}}
    (tmp_path / "whole.yaml").write_text(yaml.safe_dump(whole))
    arguments = ("--config", str(tmp_path / "whole.yaml"))
    loader = run_lightning_cli(monkeypatch, *arguments, datamodule_class=LightningDataModule, subclass_mode_data=True)
    check_settings(loader, TUNED)


def test_lightnings_cli_refuses_a_setting_that_the_data_module_does_not_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from examples.lightning_module import TableModule

    path = write_export(tmp_path, SPAWNED, "lightning")
    with pytest.raises(SystemExit):
        run_lightning_cli(monkeypatch, "--config", str(path), datamodule_class=TableModule)
    assert "multiprocessing_context" in capsys.readouterr().err


# timm: importing timm.data needs torchvision, which is not installed here, so its loader factory is taken out of its
# source. train.py is not part of the package; its flags were compared by hand (docs/frameworks.md).

TIMM_ARGUMENTS = {"--batch-size": "batch_size", "--workers": "num_workers", "--pin-mem": "pin_memory"}


def take_create_loader() -> Any:
    """Compile timm's loader module without its imports of other parts of timm."""
    spec = importlib.util.find_spec("timm")
    assert spec is not None
    assert spec.submodule_search_locations
    path = Path(spec.submodule_search_locations[0], "data", "loader.py")
    body = ast.parse(path.read_text()).body
    of_timm = [node for node in body if isinstance(node, ast.ImportFrom) and node.level]
    names: dict[str, Any] = {alias.name: type(alias.name, (), {}) for node in of_timm for alias in node.names}
    names |= {
        "IMAGENET_DEFAULT_MEAN": (0.5,),
        "IMAGENET_DEFAULT_STD": (0.5,),
        "create_transform": lambda *_, **__: None,
    }
    rest = ast.Module([node for node in body if node not in of_timm], [])
    exec(compile(rest, str(path), "exec"), names)
    return names["create_loader"]


def read_flags(text: str) -> dict[str, Any]:
    """Read flags into the arguments that train.py gives to `create_loader`."""
    words = text.split()
    values = {name: word for name, word in zip(words, [*words[1:], "--"], strict=True) if name.startswith("--")}
    return {TIMM_ARGUMENTS[name]: True if word.startswith("--") else int(word) for name, word in values.items()}


def test_timms_loader_has_the_settings_of_the_flags_and_of_no_other(
    config: LoaderConfig,
) -> None:
    made = export_config(config, "timm")
    create_loader = take_create_loader()
    loader = create_loader(
        DATA, input_size=(3, 8, 8), is_training=True, use_prefetcher=False, device="cpu", **read_flags(made.text)
    )
    lost = {note.partition("=")[0] for note in made.notes if " is not supported by " in note}
    tuned = config.dataloader
    assert loader.batch_size == tuned.batch_size
    for name in SETTINGS:
        assert (getattr(loader, name) == getattr(tuned, name)) == (name not in lost), name

"""What the table of adapters says of a library holds for the one that is installed, and its hint works as it stands."""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Callable, Iterable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from autotune.child.adapters import TABLE, Adapter, find_adapter, suggest_call, warn_of
from autotune.child.loader_building import build_loader
from autotune.child.own_loaders import list_own_methods
from autotune.child.probe import warn_of_libraries
from autotune.child.workload_loading import LoadedWorkload, load_workload
from autotune.config import DataLoaderSettings
from autotune.errors import UsageError
from autotune.request import WorkloadRequest
from tests.builders import make_config
from tests.own_loaders import Doubling, Numbers

Names = dict[str, Any]  # what the code of a hint means by its names
MODULE = "a_users_module"
BATCHES = 3
pytestmark = pytest.mark.filterwarnings("ignore")  # libraries of all ages are asked here


@pytest.fixture(scope="module", autouse=True)
def admitted_torchvision() -> Any:
    """Import torchvision beside a torch without CUDA, where its compiled operators cannot be loaded."""
    if find_spec("torchvision") is None:
        return None
    try:
        return import_module("torchvision")
    except RuntimeError:
        operators = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            operators.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        return import_module("torchvision"), operators


def each(adapters: Iterable[Adapter]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("adapter", tuple(adapters), ids=lambda adapter: adapter.name)


def collate_rows(indices: list[int]) -> torch.Tensor:
    return torch.tensor(indices)


def accelerate_shard(folder: Path) -> Names:
    accelerate = pytest.importorskip("accelerate")
    return {"accelerator": accelerate.Accelerator(cpu=True), "DataLoader": DataLoader, "dataset": Numbers()}


def accelerate_dispatcher(folder: Path) -> Names:
    utils = pytest.importorskip("accelerate.utils")
    accelerate = pytest.importorskip("accelerate")
    configuration = utils.DataLoaderConfiguration(dispatch_batches=True)
    accelerator = accelerate.Accelerator(cpu=True, dataloader_config=configuration)
    return {"accelerator": accelerator, "DataLoader": DataLoader, "dataset": Numbers()}


def composer_spec(folder: Path) -> Names:
    core = pytest.importorskip("composer.core", exc_type=ImportError)
    return {"spec": core.DataSpec(DataLoader(Numbers(), batch_size=4))}


def datasets_stream(folder: Path) -> Names:
    datasets = pytest.importorskip("datasets")
    assert datasets.config.SLEEP_TIME_ON_THREADS_SHUTDOWN == 5
    rows = datasets.Dataset.from_dict({"row": list(range(40))})
    return {"loader": lambda: rows.to_iterable_dataset(num_shards=2).with_format("torch")}


def detectron2_grouping(folder: Path) -> Names:
    data = pytest.importorskip("detectron2.data", exc_type=ImportError)
    images = [{"width": 3, "height": 2, "image": torch.zeros(3, 2)} for _ in range(40)]
    return {"build_detection_train_loader": data.build_detection_train_loader, "images": images, "mapper": dict}


def litdata_streaming(folder: Path) -> Names:
    litdata = pytest.importorskip("litdata")
    streaming = pytest.importorskip("litdata.streaming")
    writer = streaming.Cache(input_dir=str(folder), chunk_bytes="1MB")
    for number in range(40):
        writer[number] = torch.full((2,), float(number))
    writer.done()
    writer.merge()
    return {"loader": lambda: litdata.StreamingDataLoader(litdata.StreamingDataset(str(folder)), batch_size=4)}


def monai_threads(folder: Path) -> Names:
    monai = pytest.importorskip("monai.data")
    return {"loader": lambda: monai.ThreadDataLoader(Numbers(), batch_size=4)}


def dali_iterator(folder: Path) -> Names:
    dali = pytest.importorskip("nvidia.dali", exc_type=ImportError)
    plugin = pytest.importorskip("nvidia.dali.plugin.pytorch", exc_type=ImportError)

    @dali.pipeline_def(device_id=None)  # type: ignore[untyped-decorator]  # of an optional library
    def make_pipeline() -> Any:
        return dali.fn.external_source(lambda info: torch.zeros(2).numpy(), batch=False)

    return {"DALIGenericIterator": plugin.DALIGenericIterator, "make_pipeline": make_pipeline, "names": ["x"]}


def ray_batches(folder: Path) -> Names:
    data = pytest.importorskip("ray.data", exc_type=ImportError)
    return {"ray_dataset": data.range(40)}


def spdl_threads(folder: Path) -> Names:
    spdl = pytest.importorskip("spdl.dataloader")
    return {"DataLoader": spdl.DataLoader, "source": range(40), "load": float, "collate": torch.tensor}


def spdl_processes(folder: Path) -> Names:
    spdl = pytest.importorskip("spdl.dataloader")
    return {"get_pytorch_dataloader": spdl.get_pytorch_dataloader, "dataset": Numbers()}


def mosaicml_dataset(folder: Path) -> Names:
    streaming = pytest.importorskip("streaming", exc_type=ImportError)
    with streaming.MDSWriter(out=str(folder), columns={"x": "int"}) as writer:
        for number in range(40):
            writer.write({"x": number})
    return {
        "StreamingDataset": streaming.StreamingDataset,
        "StreamingDataLoader": streaming.StreamingDataLoader,
        "folder": str(folder),
    }


def mosaicml_loader(folder: Path) -> Names:
    names = mosaicml_dataset(folder)
    make, dataset = names["StreamingDataLoader"], names["StreamingDataset"]
    return {"loader": lambda: make(dataset(local=str(folder), batch_size=4), batch_size=4)}


def timm_multi_epochs(folder: Path) -> Names:
    if find_spec("timm") is None:
        pytest.skip("could not import 'timm'")
    if find_spec("torchvision") is None:  # its file is read alone
        from tests.data_modules import make_multi_epochs  # which wants more libraries

        return {"loader": make_multi_epochs}
    loader = pytest.importorskip("timm.data.loader", exc_type=ImportError)
    return {"loader": lambda: loader.MultiEpochsDataLoader(Numbers(), batch_size=4)}


def timm_prefetching(folder: Path) -> Names:
    data = pytest.importorskip("timm.data", exc_type=ImportError)
    size, images = (3, 8, 8), Images()
    return {"create_loader": data.create_loader, "dataset": images, "input_size": size, "device": torch.device("cpu")}


class Images(Numbers):
    transform: Any = None

    def __getitem__(self, index: int) -> Any:
        from PIL import Image

        return self.transform(Image.new("RGB", (8, 8))), 0


def pyg_graphs(folder: Path) -> Names:
    loader = pytest.importorskip("torch_geometric.loader")
    data = pytest.importorskip("torch_geometric.data")
    graphs = [data.Data(x=torch.zeros(3, 2), edge_index=torch.tensor([[0, 1], [1, 2]])) for _ in range(40)]
    return {"loader": lambda: loader.DataLoader(graphs, batch_size=4)}


def pyg_nodes(folder: Path) -> Names:
    loader = pytest.importorskip("torch_geometric.loader")
    return {"loader": lambda: loader.NodeLoader(make_graph(), make_neighbours(), batch_size=4)}


def pyg_links(folder: Path) -> Names:
    loader = pytest.importorskip("torch_geometric.loader")
    return {"loader": lambda: loader.LinkLoader(make_graph(), make_neighbours(), batch_size=4)}


def make_graph() -> Any:
    from torch_geometric.data import Data

    edges = torch.stack([torch.arange(40), torch.arange(40).roll(1)])
    return Data(x=torch.zeros(40, 2), edge_index=edges)


def make_neighbours() -> Any:
    """Sample nothing but the nodes that are asked for; PyTorch Geometric's own sampler wants a library in C++."""
    from torch_geometric.sampler import BaseSampler, SamplerOutput

    none = torch.empty(0, dtype=torch.long)

    class Alone(BaseSampler):  # type: ignore[misc]  # of an optional library
        def sample_from_nodes(self, index: Any, **_: Any) -> Any:
            return SamplerOutput(index.node, none, none, none, metadata=(index.input_id, index.time))

        def sample_from_edges(self, index: Any, **_: Any) -> Any:
            found = (index.input_id, torch.zeros(2, len(index.row)), torch.ones(len(index.row)), None)
            return SamplerOutput(torch.cat([index.row, index.col]), none, none, none, metadata=found)

    return Alone()


def torchdata_nodes(folder: Path) -> Names:
    nodes = pytest.importorskip("torchdata.nodes")
    return {**vars(nodes), "samples": range(40), "collate": collate_rows}


def torchdata_stateful(folder: Path) -> Names:
    stateful = pytest.importorskip("torchdata.stateful_dataloader")
    return {"loader": lambda: stateful.StatefulDataLoader(Numbers(), batch_size=4)}


def ultralytics_infinite(folder: Path) -> Names:
    build = pytest.importorskip("ultralytics.data.build", exc_type=ImportError)
    return {"loader": lambda: build.InfiniteDataLoader(Numbers(), batch_size=4)}


def webdataset_loader(folder: Path) -> Names:
    webdataset = pytest.importorskip("webdataset")
    with webdataset.TarWriter(str(folder / "0.tar")) as writer:
        for number in range(40):
            writer.write({"__key__": str(number), "cls": number})
    dataset = webdataset.WebDataset(str(folder / "0.tar"), shardshuffle=False, empty_check=False).decode()
    return {"WebLoader": webdataset.WebLoader, "dataset": dataset.to_tuple("cls")}


EXAMPLES: dict[str, Callable[[Path], Names]] = {
    "accelerate.data_loader.DataLoaderDispatcher": accelerate_dispatcher,
    "accelerate.data_loader.DataLoaderShard": accelerate_shard,
    "composer.core.data_spec.DataSpec": composer_spec,
    "datasets.iterable_dataset.IterableDataset": datasets_stream,
    "detectron2.data.common.AspectRatioGroupedDataset": detectron2_grouping,
    "litdata.streaming.dataloader.StreamingDataLoader": litdata_streaming,
    "monai.data.thread_buffer.ThreadDataLoader": monai_threads,
    "nvidia.dali.plugin.pytorch.DALIGenericIterator": dali_iterator,
    "ray.data.iterator._IterableFromIterator": ray_batches,
    "spdl.dataloader._dataloader.DataLoader": spdl_threads,
    "spdl.dataloader._pytorch_dataloader.PyTorchDataLoader": spdl_processes,
    "streaming.base.dataloader.StreamingDataLoader": mosaicml_loader,
    "streaming.base.dataset.StreamingDataset": mosaicml_dataset,
    "timm.data.loader.MultiEpochsDataLoader": timm_multi_epochs,
    "timm.data.loader.PrefetchLoader": timm_prefetching,
    "torch_geometric.loader.dataloader.DataLoader": pyg_graphs,
    "torch_geometric.loader.link_loader.LinkLoader": pyg_links,
    "torch_geometric.loader.node_loader.NodeLoader": pyg_nodes,
    "torchdata.nodes.loader.Loader": torchdata_nodes,
    "torchdata.stateful_dataloader.stateful_dataloader.StatefulDataLoader": torchdata_stateful,
    "ultralytics.data.build.InfiniteDataLoader": ultralytics_infinite,
    "webdataset.compat.WebLoader": webdataset_loader,
}


@pytest.fixture
def users_module(adapter: Adapter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Write the module that a user would, by what the hint says."""
    module = ModuleType(MODULE)
    vars(module).update(EXAMPLES[adapter.name](tmp_path))
    if adapter.call is None:
        module.make_loader = module.loader  # type: ignore[attr-defined]
    elif adapter.option == "--dataset":
        exec(f"def make_loader(): return {adapter.call}", vars(module))
    else:
        exec((adapter.hint or "").partition(": ")[2], vars(module))
    monkeypatch.setitem(sys.modules, MODULE, module)
    return module


def load(adapter: Adapter) -> LoadedWorkload:
    return load_workload(WorkloadRequest(dataset=f"{MODULE}:make_loader", is_loader=adapter.option == "--loader"))


@pytest.mark.slow
@each(TABLE)
def test_a_loader_that_is_given_as_the_table_says_is_the_one_that_is_measured(
    adapter: Adapter, users_module: ModuleType
) -> None:
    workload = load(adapter)
    loader = build_loader(workload, make_config(0, batch_size=4))
    assert len(list(itertools.islice(loader, BATCHES))) == BATCHES
    cls = find_class(adapter, workload, users_module)
    assert not issubclass(cls, DataLoader) or list_own_methods(cls) == list(adapter.overrides)
    assert issubclass(cls, DataLoader) is bool(adapter.overrides)


def find_class(adapter: Adapter, workload: LoadedWorkload, users_module: ModuleType) -> type:
    """Find the class that an entry is about, among what is measured and what the user has."""
    measured = [workload.parts.dataset, *vars(users_module).values()]
    classes = [*(() if workload.own is None else (workload.own.cls,)), *map(type, measured)]
    bases: Iterable[type] = (base for cls in classes for base in cls.__mro__)
    return next(base for base in bases if f"{base.__module__}.{base.__qualname__}" == adapter.name)


@pytest.mark.slow
@each(one for one in TABLE if one.call is not None and one.library != "streaming")  # which is measured as it is
def test_what_cannot_be_measured_as_it_is_returned_is_refused_with_the_librarys_own_way(
    adapter: Adapter, users_module: ModuleType
) -> None:
    name = "spec" if adapter.option == "--dataset" else "make_loader"
    settings = DataLoaderSettings(batch_size=4).model_dump()
    made = getattr(users_module, name)
    made = made(**{key: settings[key] for key in adapter.settings}) if adapter.option == "--loader" else made
    users_module.made = lambda: made  # type: ignore[attr-defined]
    with pytest.raises(UsageError, match=re.escape(adapter.hint or "")):
        load_workload(WorkloadRequest(dataset=f"{MODULE}:made"))


@pytest.mark.slow
@each(one for one in TABLE if one.warning is not None)
def test_a_run_is_told_what_to_know_of_the_measurements(adapter: Adapter, users_module: ModuleType) -> None:
    assert any(note.endswith(adapter.warning or "") for note in warn_of_libraries(load(adapter)))


# What needs no library


def test_every_entry_has_an_example_and_stands_in_the_order_of_the_alphabet() -> None:
    assert [adapter.name for adapter in TABLE] == sorted(EXAMPLES)


def test_an_entry_holds_for_the_classes_that_derive_from_its_own() -> None:
    base = type("PrefetchLoader", (), {"__module__": "timm.data.loader", "__qualname__": "PrefetchLoader"})
    found = find_adapter(type("Mine", (base,), {}))
    assert found is not None
    assert found.library == "timm"
    assert "With timm: def make_loader(batch_size, num_workers, pin_memory, persistent_workers)" in suggest_call(base())


def test_nothing_is_known_of_the_users_own_classes() -> None:
    assert find_adapter(Doubling) is None
    assert warn_of(Doubling) is None
    assert suggest_call(Numbers()) == ""

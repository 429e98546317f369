"""Loaders and datasets of other libraries, each made as its users would; all their data is made here.

Each function takes settings of DataLoader as keywords. Called without, those that `--dataset` names return what their
users have today; those that `--loader` names are called by dltune with the settings of each trial. Functions that take
nothing give a dataset, for a DataLoader of torch.
"""

from __future__ import annotations

from benchmarks.workloads.libraries.arrays import h5py_images, memory_mapped_tokens, zarr_images
from benchmarks.workloads.libraries.graphs import graphs, neighbours
from benchmarks.workloads.libraries.hugging_face import hf_iterable, hf_streaming, hf_torch, hf_transformed
from benchmarks.workloads.libraries.images import (
    albumentations_opencv,
    timm_created,
    timm_dataset,
    timm_multi_epochs,
    torchvision_mixup,
    ultralytics_built,
    ultralytics_infinite,
)
from benchmarks.workloads.libraries.made_once import BATCH
from benchmarks.workloads.libraries.nodes import hand_written, stateful, torchdata_nodes
from benchmarks.workloads.libraries.streams import (
    litdata_streaming,
    mosaic_function,
    mosaic_streaming,
    webdataset_loader,
    webdataset_resampled,
    webdataset_shards,
)
from benchmarks.workloads.libraries.trainers import (
    accelerate_prepared,
    lightning_combined,
    lightning_data_module,
    lightning_member,
    lightning_module,
    trainer_function,
)
from benchmarks.workloads.libraries.volumes import monai_cached, monai_threads

__all__ = [
    "BATCH",
    "accelerate_prepared",
    "albumentations_opencv",
    "graphs",
    "h5py_images",
    "hand_written",
    "hf_iterable",
    "hf_streaming",
    "hf_torch",
    "hf_transformed",
    "lightning_combined",
    "lightning_data_module",
    "lightning_member",
    "lightning_module",
    "litdata_streaming",
    "memory_mapped_tokens",
    "monai_cached",
    "monai_threads",
    "mosaic_function",
    "mosaic_streaming",
    "neighbours",
    "stateful",
    "timm_created",
    "timm_dataset",
    "timm_multi_epochs",
    "torchdata_nodes",
    "torchvision_mixup",
    "trainer_function",
    "ultralytics_built",
    "ultralytics_infinite",
    "webdataset_loader",
    "webdataset_resampled",
    "webdataset_shards",
    "zarr_images",
]

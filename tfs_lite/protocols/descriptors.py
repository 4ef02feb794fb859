"""Our wire definitions, in a descriptor pool of their own.

protobuf's default pool accepts each full name once per process. Ours are TensorFlow's names, so registering them
there would break programs that import ``tensorflow``, ``tensorflow_serving`` or ``grpc_health`` as well, in either
order. With a private pool both work in one process, and exchange bytes.

Messages of two pools do not mix: ``CopyFrom`` across pools raises TypeError; use ``SerializeToString`` and
``FromString``. Messages of a private pool cannot be pickled.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from google.protobuf import any_pb2, wrappers_pb2
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

DESCRIPTORS = Path(__file__).with_name("descriptors.binpb")
"""Compiled from ``protos/`` by ``tfs_lite.protocols.build``."""


def _load() -> DescriptorPool:
    pool = DescriptorPool()
    for module in (any_pb2, wrappers_pb2):
        pool.AddSerializedFile(module.DESCRIPTOR.serialized_pb)
    for file in FileDescriptorSet.FromString(DESCRIPTORS.read_bytes()).file:
        pool.AddSerializedFile(file.SerializeToString())
    return pool


POOL = _load()
"""Every file of ``protos/`` and the two of Google's that they import. Read-only; any thread may use it."""


def message_class(full_name: str) -> Any:
    """The class of one message, e.g. ``tensorflow.serving.PredictRequest``. KeyError if there is none."""
    return GetMessageClass(POOL.FindMessageTypeByName(full_name))

"""Bad versions: what is done to a copy of a good one, and how its platform has to refuse it."""

from __future__ import annotations

import json
import os
import shutil
import struct
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch

import tfs_lite
from tests.support.servers.platforms import MAX_ROWS, WIDTH, Doubler, add_to_archive, rewrite_archive
from tfs_lite.core.status import StatusCode

SECRET = b"the secret of another model"
DAMAGED, DENIED = StatusCode.DATA_LOSS, StatusCode.PERMISSION_DENIED
REFUSED, WRONG = StatusCode.FAILED_PRECONDITION, StatusCode.INVALID_ARGUMENT
WAITS = StatusCode.UNAVAILABLE
"""Without a manifest, what is no archive may be half a copy: the version is not even loaded."""
Edit = Callable[[Path], object]


class Damage(NamedTuple):
    """``edit`` changes a version's directory. The version is refused with ``code``, and ``words`` in the message.

    ``by_hand``: it is put into its place without a manifest, because ``publish`` refuses it already.
    """

    edit: Edit
    code: StatusCode
    words: str
    by_hand: bool = False


def cut(name: str) -> Edit:
    """The file's second half is missing."""
    return lambda version: os.truncate(version / name, (version / name).stat().st_size // 2)


def overwrite(name: str, content: bytes) -> Edit:
    return lambda version: (version / name).write_bytes(content)


def link_out(name: str, keep: bool = False) -> Edit:
    """The file is a link to one outside the directory of all models: to the secret, or with ``keep`` to the file
    itself."""

    def edit(version: Path) -> None:
        outside = version.parents[2] / f"outside-{version.parent.name}"
        outside.mkdir()
        if keep:
            shutil.move(version / name, outside / name)
        else:
            (outside / name).write_bytes(SECRET)
            (version / name).unlink()
        (version / name).symlink_to(outside / name)

    return edit


def link_helper_out(folder: bool) -> Edit:
    """``model.py`` imports ``more/helper.py``, which lies outside the directory of all models: the file is a link, or
    with ``folder`` the folder ``more`` is."""

    def edit(version: Path) -> None:
        outside = version.parents[2] / f"outside-{version.parent.name}"
        outside.mkdir()
        (outside / "helper.py").write_text("")
        if folder:
            (version / "more").symlink_to(outside, target_is_directory=True)
        else:
            (version / "more").mkdir()
            (version / "more" / "helper.py").symlink_to(outside / "helper.py")
        source = (version / "model.py").read_text()
        (version / "model.py").write_text(f"from .more import helper\n{source}")

    return edit


def edit_member(archive: str, ending: str, change: Callable[[bytes], bytes]) -> Edit:
    """Changes the members whose names end so."""

    def edit(version: Path) -> None:
        done: list[str] = []

        def each(name: str, data: bytes) -> bytes:
            if not name.endswith(ending):
                return data
            done.append(name)
            return change(data)

        rewrite_archive(version / archive, version / "new", each)
        assert done, f"{archive} has no {ending}"
        (version / "new").replace(version / archive)

    return edit


def add_member(archive: str, name: str, data: bytes = b"x") -> Edit:
    def edit(version: Path) -> None:
        add_to_archive(version / archive, version / "new", {name: data})
        (version / "new").replace(version / archive)

    return edit


def add_bomb(archive: str, name: str) -> Edit:
    """A member of 20 MB, which takes 20 kB in the archive."""

    def edit(version: Path) -> None:
        with zipfile.ZipFile(version / archive, "a", zipfile.ZIP_DEFLATED) as found:
            root = found.namelist()[0].partition("/")[0]
            found.writestr(f"{root}/{name}", bytes(20_000_000))

    return edit


def edit_json(name: str, **fields: Any) -> Edit:
    def edit(version: Path) -> None:
        found = json.loads((version / name).read_bytes())
        (version / name).write_text(json.dumps(found | fields))

    return edit


def _later_schema(data: bytes) -> bytes:
    return json.dumps(json.loads(data) | {"schema_version": {"major": 99, "minor": 0}}).encode()


_OPERATOR = b"torch.ops.aten.add.Tensor"
_PROGRAM = "models/model.json"


def _archive(name: str, member: str) -> dict[str, Damage]:
    return {
        "truncated": Damage(cut(name), DAMAGED, "truncated"),
        "garbage": Damage(overwrite(name, b"\xff" * 5000), DAMAGED, "no zip archive"),
        "a pickle": Damage(overwrite(name, b"\x80\x02cos\nsystem\n."), DAMAGED, "is never loaded"),
        "traversal": Damage(add_member(name, "../../../outside"), DENIED, "has a member called"),
        "bomb": Damage(add_bomb(name, member), DENIED, "would unpack to 20000000 bytes"),
        "unknown member": Damage(add_member(name, "run.so"), DENIED, "which torch does not put there"),
    }


EXPORTED_DAMAGE: Mapping[str, Damage] = {
    **_archive("model.pt2", "data/weights/weight_1"),
    "link out of the version": Damage(link_out("model.pt2"), WAITS, "is not a zip archive", True),
    "future version": Damage(edit_member("model.pt2", _PROGRAM, _later_schema), REFUSED, "99"),
    "custom operator": Damage(
        edit_member("model.pt2", _PROGRAM, lambda data: data.replace(_OPERATOR, b"torch.ops.evil.steal.default")),
        DENIED,
        "evil",
    ),
}

SCRIPT_DAMAGE: Mapping[str, Damage] = {
    **_archive("model.pt", "constants/0"),
    "link out of the version": Damage(link_out("model.pt"), WAITS, "is not a zip archive", True),
    "future version": Damage(edit_member("model.pt", "version", lambda data: b"999\n"), REFUSED, "999"),
    "custom operator": Damage(
        edit_member("model.pt", "platforms.py", lambda data: data.replace(b"return", b"ops.evil.steal(x)\n    return")),
        REFUSED,
        "evil",
    ),
}


def _name_labels_outside(version: Path) -> None:
    (version.parents[2] / "secret").write_bytes(SECRET)
    config = version / "config.pbtxt"
    config.write_text(config.read_text().replace("output {", 'output { label_filename: "../../../secret"', 1))


PYTHON_DAMAGE: Mapping[str, Damage] = {
    "truncated": Damage(cut("model.safetensors"), DAMAGED, "model.safetensors"),
    "garbage": Damage(overwrite("model.safetensors", b"\xff" * 5000), DAMAGED, "model.safetensors"),
    "no Python": Damage(overwrite("model.py", b"\xff\x00"), WRONG, "model.py"),
    "a pickle": Damage(overwrite("model.safetensors", b"\x80\x02cos\nsystem\n."), DAMAGED, "model.safetensors"),
    "link out of the version": Damage(link_out("model.py", keep=True), DENIED, "--trusted_model_base_paths", True),
    "linked file in a folder": Damage(link_helper_out(folder=False), DENIED, "--trusted_model_base_paths", True),
    "linked folder": Damage(link_helper_out(folder=True), DENIED, "--trusted_model_base_paths", True),
    "traversal": Damage(_name_labels_outside, WRONG, "label_filename", True),
    "bomb": Damage(overwrite("model.safetensors", struct.pack("<Q", 1 << 60) + b"{}"), DAMAGED, "model.safetensors"),
    "future version": Damage(overwrite("model.py", b"match = later 99:\n"), WRONG, "line 1"),
    "custom operator": Damage(overwrite("model.py", b"import no_such_library\n"), WRONG, "no_such_library"),
}

_compile_for_another_machine = edit_member(
    "model.pt2", "_metadata.json", lambda data: json.dumps(json.loads(data) | {"AOTI_MACHINE": "s390x"}).encode()
)


def _run_a_custom_operator(version: Path) -> None:
    """The code is trusted as a whole; the program beside it, which runs where the code cannot, knows no library."""
    _compile_for_another_machine(version)
    edit_member("model.pt2", _PROGRAM, lambda data: data.replace(_OPERATOR, b"torch.ops.evil.steal.default"))(version)
    (version / "config.pbtxt").write_text('parameters { key: "aoti_fallback" value { string_value: "export" } }')


def _compile_custom_operator(version: Path) -> None:
    """The archive calls an operator of a library that its author had and the server has not."""

    class Thief(Doubler):
        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            found: dict[str, torch.Tensor] = super().forward(torch.ops.evil.steal(x))
            return found

    with torch.library._scoped_library("evil", "DEF") as library:
        library.define("steal(Tensor x) -> Tensor")
        library.impl("steal", torch.clone, "CompositeExplicitAutograd")
        library.impl("steal", torch.empty_like, "Meta")
        inputs = {"x": torch.zeros(3, WIDTH)}
        made = tfs_lite.save(
            Thief(1.0), version.parent / "base", example_inputs=inputs, max_batch_size=MAX_ROWS, compile="aoti"
        )
    (made / "model.pt2").replace(version / "model.pt2")
    shutil.rmtree(made.parent)


COMPILED_DAMAGE: Mapping[str, Damage] = {
    **_archive("model.pt2", "data/weights/weight_1"),
    "link out of the version": Damage(link_out("model.pt2", keep=True), DENIED, "--trusted_model_base_paths", True),
    "future version": Damage(edit_member("model.pt2", _PROGRAM, _later_schema), REFUSED, "99"),
    "future torch": Damage(
        edit_member(
            "model.pt2", "_metadata.json", lambda data: json.dumps(json.loads(data) | {"torch": "99.0"}).encode()
        ),
        REFUSED,
        "torch 99.0",
    ),
    "another machine": Damage(_compile_for_another_machine, REFUSED, "processor s390x"),
    "custom operator": Damage(_compile_custom_operator, REFUSED, "evil"),
    "custom operator where the code cannot run": Damage(_run_a_custom_operator, REFUSED, "evil"),
    "no library": Damage(
        edit_member("model.pt2", ".so", lambda data: b"\x7fELF of nothing"), REFUSED, "cannot be loaded"
    ),
}


def _onnx(edit: Callable[[Any], object]) -> Edit:
    """Changes the model's message."""

    def change(version: Path) -> None:
        from onnx import load, save

        model = load(version / "model.onnx")
        edit(model)
        save(model, version / "model.onnx")

    return change


def _external(location: str) -> Edit:
    def edit(model: Any) -> None:
        from onnx import TensorProto

        (tensor,) = model.graph.initializer
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value=location)

    return _onnx(edit)


def _linked_weights(version: Path) -> None:
    (version / "weights.bin").write_bytes(b"")
    link_out("weights.bin")(version)
    _external("weights.bin")(version)


def _fill(model: Any) -> None:
    from onnx import helper

    size = helper.make_tensor("size", 7, [1], [1 << 31])
    model.graph.node.insert(0, helper.make_node("ConstantOfShape", ["many"], ["zeros"]))
    model.graph.node.insert(0, helper.make_node("Constant", [], ["many"], value=size))


def _call_library(model: Any) -> None:
    from onnx import helper

    model.opset_import.append(helper.make_opsetid("evil", 1))
    model.graph.node.append(helper.make_node("Steal", ["x"], ["loot"], domain="evil"))


def _set_opset(model: Any) -> None:
    model.opset_import[0].version = 99


ONNX_DAMAGE: Mapping[str, Damage] = {
    "truncated": Damage(cut("model.onnx"), DAMAGED, "no protobuf message"),
    "garbage": Damage(overwrite("model.onnx", b"\xff" * 5000), DAMAGED, "no protobuf message"),
    "a pickle": Damage(overwrite("model.onnx", b"\x80\x02cos\nsystem\n."), DAMAGED, "no protobuf message"),
    "traversal": Damage(_external("../../secret"), DENIED, "offset"),
    "link out of the version": Damage(_linked_weights, DENIED, "offset", True),
    "bomb": Damage(_onnx(_fill), DENIED, "256 MiB"),
    "future version": Damage(_onnx(_set_opset), REFUSED, "Opset 99"),
    "custom operator": Damage(_onnx(_call_library), REFUSED, "operator Steal of the domain evil"),
}

_WEIGHTS = "model.safetensors"


def _name_weights_outside(version: Path) -> None:
    (version / _WEIGHTS).unlink()
    index = {"weight_map": {"embeddings.word_embeddings.weight": "../../secret.safetensors"}}
    (version / f"{_WEIGHTS}.index.json").write_text(json.dumps(index))


ENCODER_DAMAGE: Mapping[str, Damage] = {
    "truncated": Damage(cut(_WEIGHTS), DAMAGED, _WEIGHTS),
    "garbage": Damage(overwrite(_WEIGHTS, b"\xff" * 5000), DAMAGED, _WEIGHTS),
    "no JSON": Damage(cut("config.json"), DAMAGED, "config.json"),
    "cut tokenizer": Damage(cut("tokenizer.json"), REFUSED, "the tokenizer cannot be loaded"),
    "a pickle": Damage(
        lambda version: (version / _WEIGHTS).rename(version / "pytorch_model.bin"), REFUSED, "safetensors"
    ),
    "link out of the version": Damage(link_out(_WEIGHTS), WAITS, "is not a safetensors file", True),
    "traversal": Damage(_name_weights_outside, DENIED, "secret.safetensors"),
    "bomb": Damage(overwrite(_WEIGHTS, struct.pack("<Q", 1 << 60) + b"{}"), DAMAGED, _WEIGHTS),
    "sizes of a bomb": Damage(edit_json("config.json", intermediate_size=10**9), REFUSED, "config.json"),
    "future version": Damage(edit_json("config.json", model_type="bert99"), REFUSED, "bert99"),
    "custom operator": Damage(
        edit_json("config.json", auto_map={"AutoModel": "modeling_evil.Evil"}), DENIED, "such code is never run"
    ),
}

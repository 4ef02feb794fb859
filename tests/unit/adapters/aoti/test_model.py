"""Compiled programs that must not be called: for another machine, damaged, or without what says what they take."""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Mapping

import numpy as np
import pytest
import torch
from torch.export import Dim

from tests.support.errors import refusal
from tests.support.servers.platforms import add_to_archive, rewrite_archive
from tfs_lite import save
from tfs_lite.adapters.aoti.machine import cpu_flags, flags_of_compiler
from tfs_lite.adapters.aoti.model import CompiledModel, check_config, open_compiled
from tfs_lite.config.model import ModelSettings
from tfs_lite.core.signature import DEFAULT_SIGNATURE
from tfs_lite.core.status import StatusCode

HERE = {
    "AOTI_PLATFORM": sys.platform,
    "AOTI_MACHINE": platform.machine(),
    "AOTI_CPU_ISA": "",
    "AOTI_DEVICE_KEY": "cpu",
    "torch": torch.__version__,
    "cpu_flags": "",
}
CODE = "data/aotinductor/model/code.wrapper.so"
METADATA = "data/aotinductor/model/code.wrapper_metadata.json"
FALLBACK = ModelSettings(parameters={"aoti_fallback": "export"})


class Double(torch.nn.Module):
    def forward(self, x):
        return {"y": x * 2}


@pytest.fixture
def compiled(tmp_path):
    """Makes a version of a program with code beside it that is no library."""

    def make(
        metadata: Mapping[str, object], more: Mapping[str, bytes] | None = None, width: int = 8, **options: object
    ):
        version = save(Double(), tmp_path, example_inputs={"x": torch.zeros(2, width)}, **options)
        members = {CODE: b"\x7fELF of nothing", METADATA: json.dumps(metadata).encode(), **(more or {})}
        add_to_archive(version / "model.pt2", version / "new", members)
        (version / "new").replace(version / "model.pt2")
        return version

    return make


OTHER_MACHINES = {
    "processor": ({"AOTI_MACHINE": "s390x"}, f"processor s390x, here is {platform.machine()}"),
    "system": ({"AOTI_PLATFORM": "plan9"}, f"operating system plan9, here is {sys.platform}"),
    "device": ({"AOTI_DEVICE_KEY": "cuda"}, "device cuda, here is cpu"),
    "torch": ({"torch": "99.1.0"}, f"torch 99.1.0, here is {torch.__version__}"),
    "flags": ({"AOTI_CPU_ISA": "AVX9", "cpu_flags": "avx9"}, "instructions AVX9, here is a processor without avx9"),
}


@pytest.mark.parametrize(("difference", "message"), OTHER_MACHINES.values(), ids=OTHER_MACHINES)
def test_code_for_another_machine_is_refused_with_both_names_or_its_program_runs(
    compiled, request_for, difference, message
):
    version = compiled({**HERE, **difference})
    refused = refusal(open_compiled, request_for(version, trusted=True), code=StatusCode.FAILED_PRECONDITION)
    assert message in refused
    assert "aoti_fallback" in refused
    model = open_compiled(request_for(version, FALLBACK, trusted=True))
    assert model.platform == "pytorch_export"
    x = np.ones((3, 8), np.float32)
    assert model.run(DEFAULT_SIGNATURE, {"x": x}, ())["y"].tolist() == (x * 2).tolist()
    model.close()


BAD = {
    "no library": (HERE, {}, StatusCode.FAILED_PRECONDITION, "the compiled code cannot be loaded"),
    "no metadata": ({}, {}, StatusCode.DATA_LOSS, "does not say for which machine"),
    "two machines": (
        HERE,
        {METADATA.replace("wrapper", "kernel"): b'{"AOTI_MACHINE": "s390x"}'},
        StatusCode.DATA_LOSS,
        "holds code for two machines",
    ),
    "metadata no JSON": (HERE, {METADATA.replace("wrapper", "a"): b"{"}, StatusCode.DATA_LOSS, "cannot be read"),
    "unknown member": (HERE, {"data/other": b""}, StatusCode.PERMISSION_DENIED, "data/other"),
    "outside": (HERE, {"data/aotinductor/model/../../x.so": b""}, StatusCode.PERMISSION_DENIED, ""),
    "unknown instructions": (
        {name: value for name, value in HERE.items() if name != "cpu_flags"} | {"AOTI_CPU_ISA": "VSX"},
        {},
        StatusCode.FAILED_PRECONDITION,
        "unknown instructions: VSX",
    ),
}


@pytest.mark.parametrize(("metadata", "more", "code", "message"), BAD.values(), ids=BAD)
def test_bad_archives_are_refused(compiled, request_for, metadata, more, code, message):
    version = compiled(metadata, more)
    assert message in refusal(open_compiled, request_for(version, trusted=True), code=code)


def test_a_program_of_another_schema_is_refused(compiled, request_for):
    version = compiled(HERE)

    def later(name, data):
        schema = {"schema_version": {"major": 99, "minor": 0}}
        return json.dumps(json.loads(data) | schema).encode() if name == "models/model.json" else data

    rewrite_archive(version / "model.pt2", version / "new", later).replace(version / "model.pt2")
    message = refusal(open_compiled, request_for(version, trusted=True), code=StatusCode.FAILED_PRECONDITION)
    assert "schema has version 99" in message


def test_a_truncated_archive_is_refused(compiled, request_for):
    version = compiled(HERE)
    request = request_for(version, trusted=True)
    whole = (version / "model.pt2").read_bytes()
    (version / "model.pt2").write_bytes(whole[: len(whole) // 2])
    refusal(open_compiled, request, code=StatusCode.DATA_LOSS)


def test_conditions_of_the_program_are_in_the_signature(compiled):
    version = compiled(HERE, width=16, dynamic_dims={"x": {1: 8 * Dim("_eights", max=9)}}, dynamic_batch=False)
    signature = check_config(str(version), ModelSettings())
    assert signature.conditions.shown() == ("x.shape[1] % 8 == 0",)


def test_a_program_with_guards_that_cannot_be_read_is_refused(compiled, request_for):
    version = compiled(HERE)

    def guarded(name, data):
        return (
            json.dumps(json.loads(data) | {"guards_code": ["L['x'].size()[0] in (2, 3)"]}).encode()
            if name == "models/model.json"
            else data
        )

    rewrite_archive(version / "model.pt2", version / "new", guarded).replace(version / "model.pt2")
    message = refusal(open_compiled, request_for(version, trusted=True), code=StatusCode.FAILED_PRECONDITION)
    assert "guards that are no plain arithmetic on sizes" in message


def test_a_config_that_contradicts_the_program_is_refused_without_loading_code(compiled):
    version = compiled(HERE)
    assert check_config(str(version), ModelSettings()).input_names == ("x",)
    assert "aoti_fallback" in refusal(check_config, str(version), ModelSettings(parameters={"aoti_fallback": "eager"}))


def test_options_of_compilers_are_read_as_flags_of_processors():
    options = "-mavx512f -mavx512vl -mfma -mavx512vnni -mamx-tile -mavx512bf16 -march=native"
    assert flags_of_compiler(options) == "avx512f avx512vl fma avx512_vnni amx_tile avx512_bf16"


@pytest.mark.skipif(sys.platform != "linux", reason="processors tell their flags in /proc/cpuinfo")
def test_this_machine_tells_its_flags():
    assert cpu_flags()


@pytest.mark.parametrize("options", [{"compile": "tvm"}, {"compile": "aoti", "isa": "mmx"}])
def test_unknown_ways_to_compile_are_refused(tmp_path, options):
    refusal(save, Double(), tmp_path, example_inputs=(torch.zeros(2, 8),), **options)


def test_a_machine_without_a_compiler_is_told_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    code = StatusCode.FAILED_PRECONDITION
    message = refusal(save, Double(), tmp_path, example_inputs=(torch.zeros(2, 8),), compile="aoti", code=code)
    assert "needs a C++ compiler" in message
    assert "apt-get install g++" in message


class MergesRows:
    """Stands for code whose answer for a row depends on the rows beside it."""

    def run(self, tensors):
        return [tensors[0] - tensors[0].mean(0)]


def test_code_that_merges_rows_gets_none_of_other_requests(compiled, request_for, caplog):
    request = request_for(compiled(HERE), batch_rows=(1, 8))
    signature = check_config(request.files.directory, request.settings)
    model = CompiledModel(request, signature, MergesRows(), 0, writes=False)
    model.check_itself()
    assert not model.signatures[DEFAULT_SIGNATURE].conditions.complete
    assert "answers no two requests together" in caplog.text

"""Exported programs in other layouts: the same answers but for rounding, or the plain program."""

from __future__ import annotations

import logging

import numpy as np
import pytest
import torch

from tests.support.errors import refusal
from tfs_lite import save
from tfs_lite.adapters.exported.document import read_document
from tfs_lite.adapters.exported.layout import choose_layout
from tfs_lite.adapters.inspect.archive import open_archive
from tfs_lite.adapters.pytorch.export import check_config, open_exported
from tfs_lite.config.model import ModelSettings
from tfs_lite.core.signature import DEFAULT_SIGNATURE


class Images(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm = torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.BatchNorm2d(8)
        self.last = torch.nn.Linear(8 * 64, 4)

    def forward(self, x):
        image = self.norm(self.first(x)).relu()
        return {"image": image, "scores": self.last(image.view(-1, 8 * 64))}


class Wide(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.words = torch.nn.Embedding(50, 512)
        self.first, self.second = torch.nn.Linear(512, 600, bias=False), torch.nn.Linear(600, 512)
        self.narrow = torch.nn.Linear(512, 4)
        self.tied = torch.nn.Linear(512, 50, bias=False)
        self.tied.weight = self.words.weight

    def forward(self, ids):
        hidden = self.second(self.first(self.words(ids)).relu())
        return {"scores": self.narrow(hidden), "words": self.tied(hidden)}


class Grouped(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.convolution = torch.nn.Conv2d(4, 4, 3, groups=4)

    def forward(self, x):
        return self.convolution(x)


class Strided(torch.nn.Module):
    """Takes the layout for granted: in another one it answers other numbers."""

    def __init__(self):
        super().__init__()
        self.convolution = torch.nn.Conv2d(3, 4, 1)

    def forward(self, x):
        return torch.as_strided(self.convolution(x), (2, 4), (4, 1))


SEEDED = torch.Generator().manual_seed(0)
"""Else inputs would depend on what was imported before, and bfloat16 misses its digit for one in some thousand."""
IMAGE, IDS = torch.rand(2, 3, 8, 8, generator=SEEDED), torch.arange(12).reshape(2, 6)
CASES = {
    "images": (Images, (IMAGE,), {"channels_last": "channels_last", "auto": "channels_last", "packed": "1 packed"}),
    "wide": (Wide, (IDS,), {"channels_last": "channels_last", "auto": "2 packed", "packed": "3 packed"}),
    "grouped": (Grouped, (torch.rand(2, 4, 8, 8, generator=SEEDED),), {"auto": "plain", "packed": "plain"}),
}


@pytest.fixture
def load(tmp_path, request_for):
    """Saves a module and opens it in a layout."""

    def open_in(module, examples, layout, dtype="", **options):
        version = save(module, tmp_path, example_inputs=examples, **options)
        wanted = {"cpu_layout": layout, "cpu_dtype": dtype}
        settings = ModelSettings(parameters={name: value for name, value in wanted.items() if value})
        return open_exported(request_for(version, settings))

    return open_in


@pytest.mark.parametrize(
    ("case", "layout"), [(case, layout) for case, (_, _, layouts) in CASES.items() for layout in layouts]
)
def test_answers_are_those_of_the_plain_program(load, caplog, case, layout):
    caplog.set_level(logging.INFO)
    torch.manual_seed(0)
    kind, (example,), layouts = CASES[case]
    module = kind()
    model = load(module, (example,), layout)
    (name,) = model.signatures[DEFAULT_SIGNATURE].input_names
    (line,) = [record.getMessage() for record in caplog.records if "cpu_layout" in record.getMessage()]
    assert ("changes nothing" if layouts[layout] == "plain" else layouts[layout]) in line
    for rows in (0, 1, 2, 5):
        inputs = torch.cat([example, example, example])[:rows]
        answer = model.run(DEFAULT_SIGNATURE, {name: inputs.numpy()}, ())
        with torch.no_grad():
            expected = module.eval()(inputs)
        for key, value in (expected if isinstance(expected, dict) else {"output_0": expected}).items():
            np.testing.assert_allclose(answer[key], value.numpy(), atol=1e-5, rtol=1e-4)
            assert answer[key].flags.c_contiguous


def test_without_it_answers_are_bit_for_bit_those_of_the_program(load):
    module = Images().eval()
    model = load(module, (IMAGE,), "")
    with torch.no_grad():
        expected = module(IMAGE)
    answer = model.run(DEFAULT_SIGNATURE, {"x": IMAGE.numpy()}, ())
    assert np.array_equal(answer["image"], expected["image"].numpy())


def test_a_program_that_answers_differently_in_another_layout_stays_plain(load, caplog):
    module = Strided().eval()
    model = load(module, (IMAGE,), "channels_last", dynamic_batch=False)
    assert "stays plain" in caplog.text
    assert "an answer differs by more than 0.0001 of its largest number" in caplog.text
    with torch.no_grad():
        expected = module(IMAGE).numpy()
    assert np.array_equal(model.run(DEFAULT_SIGNATURE, {"x": IMAGE.numpy()}, ())["output_0"], expected)


@pytest.mark.parametrize("layout", ["", "auto"])
@pytest.mark.parametrize("case", ["images", "wide", "grouped"])
def test_bfloat16_answers_to_the_second_digit_with_half_the_weights(load, caplog, monkeypatch, case, layout):
    monkeypatch.setattr("tfs_lite.adapters.pytorch.cpu_layout.cpu_flags", lambda: {"avx512_bf16"})
    caplog.set_level(logging.INFO)
    torch.manual_seed(0)
    kind, (example,), _ = CASES[case]
    module = kind().eval()
    plain, model = load(module, (example,), ""), load(module, (example,), layout, dtype="bfloat16")
    assert "layers in bfloat16; answers differ by" in caplog.text
    assert model.resident_bytes() < plain.resident_bytes()
    (name,) = model.signatures[DEFAULT_SIGNATURE].input_names
    for rows in (0, 1, 5):
        inputs = torch.cat([example, example, example])[:rows]
        answer = model.run(DEFAULT_SIGNATURE, {name: inputs.numpy()}, ())
        for key, right in plain.run(DEFAULT_SIGNATURE, {name: inputs.numpy()}, ()).items():
            assert answer[key].dtype == right.dtype
            np.testing.assert_allclose(answer[key], right, atol=3e-2 * np.abs(right).max(initial=1e-9))


def test_bfloat16_on_a_processor_without_it_is_left_out(load, caplog, monkeypatch):
    monkeypatch.setattr("tfs_lite.adapters.pytorch.cpu_layout.cpu_flags", set)
    module = Images().eval()
    model = load(module, (IMAGE,), "", dtype="bfloat16")
    assert "this processor does not compute in it" in caplog.text
    with torch.no_grad():
        assert np.array_equal(model.run("", {"x": IMAGE.numpy()}, ())["image"], module(IMAGE)["image"].numpy())


class Cancelling(torch.nn.Module):
    """Subtracts numbers that are nearly alike."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(512, 512)

    def forward(self, x):
        return self.linear(x + 100) - self.linear(torch.full_like(x, 100.0))


def test_a_program_that_needs_more_digits_stays_plain(load, caplog, monkeypatch):
    monkeypatch.setattr("tfs_lite.adapters.pytorch.cpu_layout.cpu_flags", lambda: {"avx512_bf16"})
    module = Cancelling().eval()
    model = load(module, (torch.rand(2, 512, generator=SEEDED),), "", dtype="bfloat16")
    assert "stays plain, cpu_dtype=bfloat16 does not fit it: an answer differs by more than 0.03" in caplog.text
    x = torch.rand(3, 512, generator=SEEDED)
    with torch.no_grad():
        np.testing.assert_allclose(model.run("", {"x": x.numpy()}, ())["output_0"], module(x).numpy(), atol=1e-4)


def test_a_program_that_refuses_made_up_inputs_stays_plain(load, caplog):
    class Zeros(Images):
        def forward(self, x):
            torch._assert_async((x == 0).all(), "expected zeros")
            return super().forward(x)

    model = load(Zeros(), (torch.zeros(2, 3, 8, 8),), "channels_last")
    assert "on made-up inputs it fails: " in caplog.text
    assert model.run(DEFAULT_SIGNATURE, {"x": np.zeros((1, 3, 8, 8), np.float32)}, ())["scores"].shape == (1, 4)


@pytest.mark.parametrize(("least", "changed"), [(5, True), (500, False)])
def test_made_up_inputs_are_of_a_size_that_the_program_takes(load, caplog, least, changed):
    caplog.set_level("INFO")
    images = torch.zeros(least, 3, 8, 8)
    load(Images(), (images,), "channels_last", dynamic_dims={"x": {0: torch.export.Dim("batch", min=least)}})
    assert ("answers differ by" in caplog.text) is changed
    assert ("on made-up inputs it fails: none are of sizes that it takes" in caplog.text) is not changed


class Counting(Images):
    """Keeps a state in a buffer, and works in place."""

    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls.add_(1)
        image = self.first(x).relu_()
        return {"image": image.mul_(2), "calls": self.calls + 0}


def test_a_program_with_a_state_begins_with_the_state_of_its_file(load, caplog):
    caplog.set_level(logging.INFO)
    module = Counting().eval()
    model = load(module, (IMAGE,), "channels_last", dynamic_batch=False)
    assert "cpu_layout=channels_last: channels_last" in caplog.text
    for call in (1, 2):
        answer = model.run(DEFAULT_SIGNATURE, {"x": IMAGE.numpy()}, ())
        with torch.no_grad():
            expected = module(IMAGE)
        assert answer["calls"] == expected["calls"] == call
        np.testing.assert_allclose(answer["image"], expected["image"].numpy(), atol=1e-5)


def test_a_packed_model_counts_its_bytes_once(load):
    module = Wide()
    plain, packed = load(module, (IDS,), ""), load(module, (IDS,), "auto")
    assert plain.resident_bytes() == pytest.approx(packed.resident_bytes(), rel=0.01)


def test_replicas_choose_alike(tmp_path):
    version = save(Wide(), tmp_path, example_inputs=(IDS,))
    with open_archive(str(version / "model.pt2"), "model.pt2") as archive:
        document = read_document(archive, trusted=False)
    assert choose_layout(document, "auto") == choose_layout(document, "auto")
    assert len(choose_layout(document, "auto").packed) == 2


def test_an_unknown_layout_is_refused(tmp_path, request_for):
    version = save(Grouped(), tmp_path, example_inputs=(torch.rand(2, 4, 8, 8),))
    settings = ModelSettings(parameters={"cpu_layout": "nchw"})
    expected = 'parameters.cpu_layout is "nchw", expected plain, channels_last, packed or auto'
    assert refusal(open_exported, request_for(version, settings)) == expected
    assert refusal(check_config, str(version), settings) == expected
    settings = ModelSettings(parameters={"cpu_dtype": "int8"})
    assert refusal(check_config, str(version), settings) == 'parameters.cpu_dtype is "int8", expected bfloat16'

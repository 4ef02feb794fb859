"""Architectures of timm and torchvision are saved with one call, and answer as their modules do, bit for bit.

Weights are random. Skipped where timm or torchvision is not installed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tfs_lite
from tfs_lite.adapters.detect import read_version
from tfs_lite.adapters.opening import OpenRequest
from tfs_lite.adapters.pytorch.export import open_exported
from tfs_lite.core.servable import ServableId
from tfs_lite.core.signature import DEFAULT_SIGNATURE
from tfs_lite.protocols.runs import Run, call_inputs

pytestmark = [pytest.mark.load, pytest.mark.filterwarnings("ignore")]
TIMM = [
    "cait_xxs24_224",
    "coat_lite_tiny",
    "coatnet_nano_rw_224",
    "convit_tiny",
    "convnextv2_atto",
    "crossvit_tiny_240",
    "davit_tiny",
    "deit3_small_patch16_224",
    "deit_tiny_patch16_224",
    "dla34",
    "dpn68",
    "edgenext_xx_small",
    "efficientformer_l1",
    "efficientvit_b0",
    "eva02_tiny_patch14_224",
    "fastvit_t8",
    "focalnet_tiny_srf",
    "gernet_s",
    "ghostnet_100",
    "hardcorenas_a",
    "hgnetv2_b0",
    "hrnet_w18_small",
    "lcnet_050",
    "levit_128s",
    "maxxvit_rmlp_nano_rw_256",
    "mobilenetv4_conv_small",
    "mobileone_s0",
    "mobilevit_xxs",
    "mobilevitv2_050",
    "nf_regnet_b0",
    "pit_ti_224",
    "poolformer_s12",
    "pvt_v2_b0",
    "repvgg_a0",
    "repvit_m0_9",
    "res2net50_26w_4s",
    "resmlp_12_224",
    "resnest14d",
    "resnetv2_50",
    "rexnet_100",
    "sebotnet33ts_256",
    "selecsls42",
    "skresnet18",
    "starnet_s1",
    "swin_tiny_patch4_window7_224",
    "tiny_vit_5m_224",
    "tinynet_e",
    "tnt_s_patch16_224",
    "vit_tiny_patch16_224",
    "xcit_nano_12_p16_224",
]
TORCHVISION = [
    "densenet121",
    "efficientnet_b0",
    "googlenet",
    "inception_v3",
    "maxvit_t",
    "mnasnet0_5",
    "mobilenet_v2",
    "mobilenet_v3_large",
    "mobilenet_v3_small",
    "regnet_x_400mf",
    "regnet_y_400mf",
    "resnet18",
    "shufflenet_v2_x1_0",
    "squeezenet1_0",
    "swin_t",
    "swin_v2_t",
    "deeplabv3_mobilenet_v3_large",
    "lraspp_mobilenet_v3_large",
    "r3d_18",
]
OPTIONS = {
    "deeplabv3_mobilenet_v3_large": {"weights_backbone": None},
    "lraspp_mobilenet_v3_large": {"weights_backbone": None},
}
SHAPES = {"inception_v3": (3, 299, 299), "r3d_18": (3, 16, 112, 112)}


@pytest.mark.parametrize("name", TIMM)
def test_timm(tmp_path: Path, name: str) -> None:
    module = pytest.importorskip("timm").create_model(name, pretrained=False)
    check(tmp_path, module, module.default_cfg["input_size"])


@pytest.mark.parametrize("name", TORCHVISION)
def test_torchvision(tmp_path: Path, name: str) -> None:
    models = pytest.importorskip("torchvision").models
    check(tmp_path, models.get_model(name, weights=None, **OPTIONS.get(name, {})), SHAPES.get(name, (3, 224, 224)))


def check(path: Path, module: Any, shape: tuple[int, ...]) -> None:
    """One call saves it from one row; one row and three are asked for."""
    torch.manual_seed(0)
    version = tfs_lite.save(module.eval(), path / "m", example_inputs=(torch.randn(1, *shape),))
    model = open_exported(OpenRequest(ServableId("m", 1), read_version(str(version)), "cpu", False))
    signature = model.signatures[DEFAULT_SIGNATURE]
    for rows in (1, 3):
        x = torch.randn(rows, *shape)
        sent = call_inputs(signature, Run(DEFAULT_SIGNATURE, {signature.inputs[0].name: x.numpy()}))
        answer = model.run(DEFAULT_SIGNATURE, sent, ())
        with torch.no_grad():
            expected = module(x)
        named = expected if isinstance(expected, dict) else {"output_0": expected}
        for name, value in named.items():
            assert np.array_equal(np.asarray(answer[name]), value.numpy())
    model.close()

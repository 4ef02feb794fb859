"""Packed linear layers compute what the plain ones do."""

import weakref

import pytest
import torch
from torch import nn

from tests.support.heap import mapped_bytes
from tfs_lite.adapters.language import packed
from tfs_lite.adapters.language.packed import PackedLinear, pack, packed_bytes
from tfs_lite.adapters.memory import trim_heap

Conv1D = pytest.importorskip("transformers.pytorch_utils").Conv1D


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(600, 256)
        self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 256, bias=False))])
        self.turned = Conv1D(300, 256)
        self.small = nn.Linear(300, 16)
        self.head = nn.Linear(256, 600, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = self.embedding(ids)
        for block in self.blocks:
            hidden = block(hidden)
        return self.small(self.turned(hidden)), self.head(hidden)


@pytest.fixture
def network() -> Network:
    torch.manual_seed(1)
    return Network().eval()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_packed_network_computes_what_the_plain_one_does(network: Network, dtype: torch.dtype) -> None:
    network.to(dtype)
    ids = torch.arange(21).reshape(3, 7)
    with torch.inference_mode():
        plain = network(ids)
        packs = dtype == torch.float32 or torch.ops.mkldnn._is_mkldnn_bf16_supported()  # not every processor has it
        assert (pack(network) > 0) is packs
        for before, after in zip(plain, network(ids), strict=True):
            torch.testing.assert_close(after, before, rtol=0, atol=(1e-5 if dtype == torch.float32 else 0.3))


def test_large_layers_are_packed_and_small_ones_stay(network: Network) -> None:
    pack(network)
    kinds = [type(layer) for layer in (network.blocks[0][0], network.blocks[0][2], network.turned, network.head)]
    assert kinds == [PackedLinear] * 4
    assert type(network.small) is nn.Linear


def test_bytes_of_packed_weights_are_told(network: Network) -> None:
    told = pack(network)
    assert told == packed_bytes(network) == 4 * (256 * 512 * 2 + 256 * 300 + 256 * 600)
    assert sum(p.nbytes for p in network.parameters()) < told, "the packed weights are parameters no more"


def test_tied_embedding_keeps_its_weight(network: Network) -> None:
    before = network.embedding.weight.clone()
    pack(network)
    assert torch.equal(network.embedding.weight, before)


def test_row_does_not_depend_on_how_many_others_there_are(network: Network) -> None:
    pack(network)
    x = torch.randn(64, 256)
    with torch.inference_mode():
        whole = network.head(x)
        for rows in (1, 2, 5, 8, 16, 33):
            assert torch.equal(network.head(x[:rows].contiguous()), whole[:rows])


def test_no_rows_give_no_results(network: Network) -> None:
    pack(network)
    assert network.head(torch.empty(1, 0, 256)).shape == (1, 0, 600)


def test_layer_that_is_more_than_linear_stays(network: Network) -> None:
    class Scaled(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return 2 * super().forward(x)

    network.head = Scaled(256, 600)
    pack(network)
    assert type(network.head) is Scaled


def test_double_precision_stays_as_it_is(network: Network) -> None:
    network.double()
    assert pack(network) == 0
    assert type(network.head) is nn.Linear


def test_weights_go_while_their_layers_are_packed(network: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = [weakref.ref(network.blocks[0][layer].weight) for layer in (0, 2)]
    left: list[int] = []
    make = packed.PackedLinear.__init__

    def counting(layer: PackedLinear, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        make(layer, weight, bias)
        left.append(sum(weight() is not None for weight in weights))

    monkeypatch.setattr(packed.PackedLinear, "__init__", counting)
    pack(network)
    assert (left[0], left[-1]) == (2, 0), "all of them were there to the end"


def test_packed_weights_lie_in_no_heap(network: Network) -> None:
    """From a heap they would go back to the system all at once, and keep other threads from it meanwhile."""
    torch.empty(7 << 20)  # it is freed at once, and glibc keeps blocks up to its size in a heap from now on
    network.head = nn.Linear(3072, 2048)
    trim_heap()  # a large block that is free in a heap would be used again
    pack(network)
    packed = mapped_bytes()
    network.head = None
    assert packed - mapped_bytes() >= 4 * 3072 * 2048

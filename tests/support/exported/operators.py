"""Programs of the zoo about values: dtypes, shapes, scalars, trees of inputs and outputs, families of operators."""

# mypy: allow-untyped-calls
from __future__ import annotations

import math
from collections import OrderedDict, namedtuple
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim
from torch.nn import functional
from torch.utils import _pytree as pytree

from tests.support.exported.zoo_program import floats, in_zoo, numbers, rows

# Dtypes


@in_zoo(lambda size: (numbers(9, size, 4, low=-9), numbers(5, size, 4, low=1, dtype=torch.int32)))
def integers(x: Tensor, y: Tensor) -> Any:
    small = (x * 40).to(torch.int8), x.to(torch.uint8), x.to(torch.int16) // 3
    return x // y, x % y, torch.div(x, y, rounding_mode="trunc"), (x & 3) | (y.long() << 2) ^ ~x, small, x / y


@in_zoo(lambda size: (floats(size, 4, dtype=torch.complex64),))
def complex_numbers(x: Tensor) -> Any:
    y = x * (2 - 1j) + torch.view_as_complex(torch.stack([x.real, x.imag + 1], -1))
    return (
        y.abs(),
        y.angle(),
        y.conj() @ y.real.to(y.dtype).t(),
        torch.view_as_real(y),
        y.conj(),
        y.to(torch.complex128),
    )


@in_zoo(rows(6, dtype=torch.bfloat16))
def make_bfloat16() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 3)).bfloat16()


@in_zoo(rows(6, dtype=torch.float16))
def make_float16() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).half()


@in_zoo(lambda size: (floats(size, 4) > 0, floats(size, 4, dtype=torch.float64)))
def booleans(x: Tensor, y: Tensor) -> Any:
    either = torch.logical_xor(x, y.isnan()) | (y > 0.5)
    return either, x.any(-1), x.all(), torch.where(x, y, -math.inf), y.masked_fill(x, math.nan), x.sum(0), ~x & either


@in_zoo(rows(4))
def casts(x: Tensor) -> Any:
    wide = x.double().to(torch.bfloat16).float()
    return (
        wide.half(),
        x.to(torch.float8_e4m3fn).float(),
        x.long(),
        x.bool(),
        (x * 9).to(torch.int32).view(torch.float32),
    )


# Shapes and sizes


@in_zoo(
    lambda size: (floats(size, size + 1, 3), floats(size + 1, 5, seed=2)),
    dynamic=({0: Dim("rows", max=64), 1: Dim("columns", max=65)}, {0: Dim("columns", max=65)}),
)
def two_symbols(x: Tensor, y: Tensor) -> Any:
    return torch.einsum("rcf,cw->rfw", x, y), x.sum(1), y.sum(0)


_HALF = Dim("half", max=32)


@in_zoo(lambda size: (floats(size, 3), floats(2 * size, 3, seed=2)), dynamic=({0: _HALF}, {0: 2 * _HALF}))
def derived_size(x: Tensor, y: Tensor) -> Any:
    return y.view(-1, 2, 3) + x[:, None], y[: x.shape[0]] - x, torch.cat([x, y, x])


@in_zoo(rows(4), sizes=(3, 4, 12), dynamic=({0: Dim("limited", min=3, max=12)},))
def limited_rows(x: Tensor) -> Any:
    return x[:3], x.roll(1, 0), x[-3:] + x[:3]


@in_zoo(lambda size: (floats(2, 2 * size), floats(size, seed=2)), sizes=(1, 4, 9), dynamic=({1: 2 * _HALF}, {0: _HALF}))
def size_arithmetic(x: Tensor, y: Tensor) -> Any:
    even, count = x.shape[1], y.shape[0]
    positions = torch.arange(count, device=x.device) + torch.arange(even)[:count]
    blocks = x.reshape(2, even // 2, 2).sum(-1)
    scaled = y / count + count**2 - torch.sym_max(count, 5) + torch.sym_min(3, count) * (count + 1) // 2
    made = torch.full((count % 3 + 2,), count / 2), x.new_zeros(3 * count - 1)
    return positions, blocks, scaled, made, -count, torch.sym_ite(torch.sym_not(count > 5), 1, 2)


@in_zoo(rows(4))
def square_root_of_a_size(x: Tensor) -> Any:
    return x / torch.sym_sqrt(x.shape[0])


@in_zoo(lambda size: (floats(size, 3), 3 + size, 1.5, True), dynamic=({0: Dim.DYNAMIC}, Dim.DYNAMIC, None, None))
def scalars_in(x: Tensor, count: int, factor: float, flag: bool) -> Any:
    return x * count + factor if flag else x, torch.zeros(count), count * 2


@in_zoo(rows(4))
def scalars_out(x: Tensor) -> Any:
    return x.shape[0], x + 1, x.shape[0] * 2 + 1, 7, 2.5, True, None, x.shape[0] / 2, x.dim()


@in_zoo(
    lambda size: (floats(size + 2, 3), None, 3, "mean", 0.5, floats(3, seed=2)), dynamic=({0: Dim.DYNAMIC}, *[None] * 5)
)
def constants_in(x: Tensor, nothing: None, count: int, kind: str, factor: float, bias: Tensor) -> Any:
    found = x.mean(0) if kind == "mean" and nothing is None else x.sum(0)
    return found * factor + bias, x.expand(count, *x.shape)


@in_zoo(lambda size: (floats(size, 3),), named=lambda size: {"scale": floats(), "shift": floats(size, 3, seed=2)})
def inputs_by_name(x: Tensor, *, shift: Tensor, scale: Tensor) -> Any:
    return {"y": x * scale + shift}


@in_zoo(lambda size: ({"b": floats(size, 2), "a": [floats(size, 2, seed=2), (floats(), None)]},))
def nested_inputs(tree: dict[str, Any]) -> Any:
    first, (bias, _) = tree["a"]
    return first + bias, tree["b"] - bias


@in_zoo(rows(4))
def nested_outputs(x: Tensor) -> Any:
    pair = (x + 1, [x * 2, x.sum()])
    return {"z": pair, "a": {"inner": x.mean(-1), "none": None}, "order": OrderedDict(second=x - 1, first=x.t())}


Boxes = namedtuple("Boxes", ["corners", "scores"])
pytree._register_namedtuple(Boxes, serialized_type_name="tfs_lite.testing.Boxes")


@in_zoo(rows(4))
def named_tuple_out(x: Tensor) -> Any:
    return Boxes(x.exp(), x.amax(-1))


@in_zoo(rows(4))
def the_same_twice(x: Tensor) -> Any:
    y = x + 1
    return x, y, y, y.view(-1), x


@in_zoo(lambda size: (), sizes=(1,), dynamic=None)
def no_inputs() -> Any:
    return torch.arange(3) * 2, torch.full((2,), 1.5)


@in_zoo(lambda size: (floats(size, 3), floats(size, 3)))
def unused_input(x: Tensor, y: Tensor) -> Any:
    return x * 2


@in_zoo(lambda size: (floats(),), sizes=(1,), dynamic=None)
def tensor_without_dimensions(x: Tensor) -> Any:
    return x + 1, x.expand(2, 2), x.reshape(1)


# Families of operators


@in_zoo(rows(3, 6))
def splits(x: Tensor) -> Any:
    parts = x.split(2, -1), x.chunk(4, 2), x.tensor_split(3, 1), x.split([1, 2], 1), x.unbind(1)
    return [[part.sum() for part in found] for found in parts], x.split(2, -1)[1]


@in_zoo(lambda size: (floats(6 * size + 6),), dynamic=({0: 6 * Dim("sixth", max=64)},))
def split_by_size(x: Tensor) -> Any:
    first, second, third = x.split(x.shape[0] // 3)
    left, right = x.split([x.shape[0] // 2, x.shape[0] - x.shape[0] // 2])
    return first - second + third, left, right, x.chunk(2)[1], x.unflatten(0, (-1, 3)).unbind(1)


@in_zoo(rows(5))
def sorting(x: Tensor) -> Any:
    values, order = x.sort(-1, descending=True)
    return values, order, *x.topk(3), x.argsort(0), *x.kthvalue(2), *x.median(-1), *x.mode(-1), *x.cummax(0)


@in_zoo(lambda size: (floats(size, 5), numbers(5, size, 3)))
def scattering(x: Tensor, index: Tensor) -> Any:
    source = torch.ones_like(index, dtype=x.dtype)
    added = torch.zeros_like(x).scatter_add(1, index, source)
    reduced = x.scatter_reduce(1, index, source * 2, reduce="amax", include_self=False)
    return x.gather(1, index), x.scatter(1, index, 7.0), added, reduced, x.index_select(1, torch.tensor([3, 0]))


@in_zoo(
    lambda size: (floats(6, 5), numbers(6, size), floats(size, seed=2)),
    dynamic=(None, {0: Dim.DYNAMIC}, {0: Dim.DYNAMIC}),
)
def indexing(x: Tensor, index: Tensor, values: Tensor) -> Any:
    put = x.clone()
    put[index, 1] = values
    added = x.index_put((index, torch.tensor(2)), values, accumulate=True)
    return put, added, x[index], x[:, [4, 0]], x[index, index % 5], x[..., None, ::2], x.index_add(0, index, x[index])


@in_zoo(rows(6))
def accumulations(x: Tensor) -> Any:
    return (
        x.cumsum(0),
        x.cumprod(-1),
        x.logcumsumexp(1),
        x.diff(dim=1),
        x.prod(1),
        x.logsumexp(1),
        x.var(1),
        x.norm(dim=1),
    )


@in_zoo(rows(8))
def fourier(x: Tensor) -> Any:
    spectrum = torch.fft.rfft(x)
    return spectrum, torch.fft.irfft(spectrum * 2, n=8), torch.fft.fft(x, norm="ortho"), torch.fft.fftshift(x, dim=(1,))


@in_zoo(lambda size: (floats(size, 3, 4), floats(size, 4, 5, seed=2)))
def einsums(x: Tensor, y: Tensor) -> Any:
    product = torch.einsum("bij,bjk->bik", x, y)
    return product, torch.einsum("bij,bkj->", x, x), x @ y, torch.tensordot(x, y[0:1, :, 0], dims=([2], [1]))


@in_zoo(rows(4, 9))
class Convolutions(nn.Module):
    """In one dimension, transposed, with groups, dilation and a weight that is normalised."""

    def __init__(self) -> None:
        super().__init__()
        self.plain = nn.Conv1d(4, 6, 3, padding="same", dilation=2, groups=2, padding_mode="circular")
        self.transposed = nn.ConvTranspose1d(6, 4, 3, stride=2, padding=1, output_padding=1)
        self.normed = nn.utils.parametrizations.weight_norm(nn.Conv1d(4, 2, 1))

    def forward(self, x: Tensor) -> Any:
        return self.normed(self.transposed(self.plain(x)))


@in_zoo(rows(4, 6, 6))
class Norms(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.group, self.layer, self.batch = nn.GroupNorm(2, 4), nn.LayerNorm([6, 6]), nn.BatchNorm2d(4)
        self.local, self.root = nn.LocalResponseNorm(3), nn.RMSNorm(6)

    def forward(self, x: Tensor) -> Any:
        return self.group(x), self.layer(x), self.batch(x), self.local(x), self.root(x)


@in_zoo(lambda size: (floats(size, 2, 5, 5), floats(size, 2, 3, seed=2)))
def grid_sample(x: Tensor, theta: Tensor) -> Any:
    grid = functional.affine_grid(theta, [x.shape[0], 2, 4, 4], align_corners=False)
    return functional.grid_sample(x, grid, padding_mode="border", align_corners=False), grid


@in_zoo(
    lambda size: (floats(size, 2, 5, 4), floats(size, 2, 5, 4, seed=2), floats(5, 5, seed=3)),
    dynamic=({0: Dim.DYNAMIC}, {0: Dim.DYNAMIC}, None),
)
def attention(query: Tensor, key: Tensor, mask: Tensor) -> Any:
    causal = functional.scaled_dot_product_attention(query, key, key, is_causal=True)
    return causal, functional.scaled_dot_product_attention(query, key, query, attn_mask=mask, scale=0.3)


@in_zoo(rows(3, 8, 8), sizes=(1, 4, 9))
def interpolation(x: Tensor) -> Any:
    half = functional.interpolate(x, scale_factor=0.5, mode="bicubic", antialias=True)
    area = functional.interpolate(x, size=(3, 5), mode="area")
    return half, area, functional.interpolate(x, scale_factor=1.5, recompute_scale_factor=True), x[..., ::2]


@in_zoo(lambda size: (floats(1, 2, 4 + size, 4 + size),), dynamic=({2: Dim.DYNAMIC, 3: Dim.DYNAMIC},))
def picture_of_any_size(x: Tensor) -> Any:
    twice = functional.interpolate(x, scale_factor=2, mode="nearest")
    back = functional.interpolate(twice, size=x.shape[2:], mode="bilinear")
    return (
        back,
        functional.adaptive_avg_pool2d(x, 1),
        functional.max_pool2d(x, 3, 2, 1, ceil_mode=True),
        twice[..., :-1],
    )


@in_zoo(rows(4, 6, 6))
def pooling(x: Tensor) -> Any:
    values, places = functional.max_pool2d(x, 2, return_indices=True)
    averages = functional.avg_pool2d(x, 3, 1, 1, count_include_pad=False)
    return values, places, averages, functional.adaptive_max_pool2d(x, 2), functional.lp_pool2d(x.abs(), 2.0, 2)


@in_zoo(rows(4, 6))
def paddings_and_moves(x: Tensor) -> Any:
    pads = [functional.pad(x, (1, 2), mode) for mode in ("constant", "reflect", "replicate", "circular")]
    moved = x.roll(1, 2), x.flip(1), x.unfold(2, 3, 2), x.movedim(0, -1), x.repeat(2, 1, 1), x.repeat_interleave(2, 1)
    return pads, moved, functional.pixel_shuffle(x.unsqueeze(-1), 2), x.tril(1), x.diagonal(0, 1, 2), x.rot90(1, (1, 2))


@in_zoo(rows(3, 3))
def linear_algebra(x: Tensor) -> Any:
    square = x @ x.mT + torch.eye(3)
    return (
        torch.linalg.inv(square),
        torch.linalg.det(square),
        torch.linalg.cholesky(square),
        torch.linalg.solve(square, x),
    )


@in_zoo(
    lambda size: (numbers(20, 3 * size), torch.arange(size) * 3), sizes=(1, 4, 9), dynamic=({0: 3 * _HALF}, {0: _HALF})
)
class EmbeddingBags(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bag, self.rows = nn.EmbeddingBag(20, 4, mode="mean"), nn.EmbeddingBag(20, 4, mode="sum", padding_idx=0)

    def forward(self, tokens: Tensor, offsets: Tensor) -> Any:
        return self.bag(tokens, offsets), self.rows(tokens.view(-1, 3))


@in_zoo(lambda size: (numbers(4, size), floats(size, 3)))
def counting(labels: Tensor, x: Tensor) -> Any:
    edges = torch.tensor([-1.0, 0.0, 1.0])
    return (
        functional.one_hot(labels, 4),
        torch.bucketize(x, edges),
        torch.searchsorted(edges, x),
        x.argmax(-1),
        tuple(x.aminmax(dim=1)),
    )


@in_zoo(rows(4))
def activations(x: Tensor) -> Any:
    gated = functional.glu(x), functional.softplus(x), functional.hardswish(x), functional.elu(x), functional.mish(x)
    clamped = x.clamp(-0.5, 0.5), x.clamp(min=0.1), x.clip(max=0.2), functional.leaky_relu(x, 0.2), x.round(decimals=1)
    return (
        gated,
        clamped,
        functional.normalize(x),
        functional.log_softmax(x, 0),
        torch.special.erfinv(x.tanh()),
        x.nan_to_num(),
    )


@in_zoo(rows(4))
def losses_and_distances(x: Tensor) -> Any:
    other = x.flip(1)
    return (
        functional.mse_loss(x, other),
        functional.huber_loss(x, other, delta=0.3),
        torch.cdist(x, other),
        functional.cosine_similarity(x, other),
        functional.pairwise_distance(x, other),
    )


@in_zoo(rows(4))
def made_tensors(x: Tensor) -> Any:
    made = (
        torch.zeros(2, dtype=torch.float64),
        torch.ones_like(x),
        torch.empty(0, 3),
        torch.linspace(0, 1, 5),
        torch.eye(2),
    )
    return (
        made,
        torch.tensor([1, 2, 3]),
        torch.tensor(2.5) * x,
        x.new_full((2,), math.inf),
        torch.scalar_tensor(3),
        -math.inf + x,
    )


@in_zoo(rows(4))
class LiftedConstants(nn.Module):
    """Tensors that are attributes and no buffers, one of them a view of another, and a buffer that is not saved."""

    forgotten: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.plain, self.table = floats(4), [floats(4, seed=2), numbers(5, 4)]
        self.view = self.plain[1:3]
        self.register_buffer("forgotten", floats(4, seed=3), persistent=False)

    def forward(self, x: Tensor) -> Any:
        return (
            x + self.plain * self.table[0],
            x[:, 1:3] - self.view,
            x * self.forgotten + self.table[1],
            torch.tensor([1.0, 2, 3, 4]) + x,
        )


@in_zoo(rows(4))
def memory_formats(x: Tensor) -> Any:
    picture = x.reshape(-1, 1, 2, 2).contiguous(memory_format=torch.channels_last)
    return picture, picture.permute(0, 2, 3, 1).contiguous(), x.t().clone(memory_format=torch.preserve_format), x.t()


@in_zoo(rows(5), sizes=(0, 1, 4, 9))
def data_dependent_sizes(x: Tensor) -> Any:
    positive = x[x > 0]
    return positive, (x > 0).nonzero(), positive.sum(), x.masked_select(x < 0).shape[0]


@in_zoo(lambda size: (floats(6, 3), torch.tensor(min(size, 6))), dynamic=None)
def size_from_a_value(x: Tensor, count: Tensor) -> Any:
    length: Any = count.item()
    torch._check(length >= 0)
    torch._check(length <= 6)
    return x.narrow(0, 0, length), torch.arange(length), length + 1, x.sum().item()


@in_zoo(lambda size: (numbers(6, size + 1),), dynamic=({0: Dim.DYNAMIC},))
def uniques(x: Tensor) -> Any:
    return torch.unique(x, return_inverse=True, return_counts=True), torch.bincount(x, minlength=6)


@in_zoo(rows(4), sizes=(1, 4, 9))
def quantised(x: Tensor) -> Any:
    scale = x.abs().amax() / 127
    whole = (x / scale).round().clamp(-128, 127).to(torch.int8)
    return whole, whole.float() * scale, whole.int() @ whole.int().t()

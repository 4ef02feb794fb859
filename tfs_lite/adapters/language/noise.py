"""Noise for the draw of a token, as a function of the seed, the number of the token in its text, and the token's id.

There is no generator with a state, so a text gets the same noise alone, in company, in another place, and after it was
put off and computed again. Seed and number become 64 bits of key on the host; key and id are hashed on the device with
32-bit integer arithmetic, which wraps around in the same way everywhere, so that a CPU and a GPU have the same bits.
"""

from __future__ import annotations

import torch

_MASK = 2**64 - 1
_ODD = 0x9E3779B97F4A7C15


def noise_key(seed: int, index: int) -> tuple[int, int]:
    """Two signed 32-bit numbers for the ``index``-th draw of a text with this seed (any integer; those that are equal
    modulo 2**64 are one)."""
    key = _mix64((_mix64(seed & _MASK) + (index + 1) * _ODD) & _MASK)
    return _signed(key & 0xFFFFFFFF), _signed(key >> 32)


def exponential(keys: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Independent draws of the exponential distribution with mean 1.

    ``keys``: int32 ``[rows, 2]``; ``ids``: int32 ``[rows, n]`` or ``[n]``, for all rows. Float32 ``[rows, n]``, above 0
    and at most 16.7; a row's number for an id depends on its key and on the id alone.
    """
    bits = _hash(keys[:, :1], keys[:, 1:], ids)
    bits &= 0x7FFFFFFF
    uniform = bits.to(torch.float32)
    uniform += 0.5
    uniform *= 2.0**-31
    # Near 0 these floats are fine, and it is the small numbers that win; near 1 they would round to 1.
    return uniform.clamp_(max=1 - 2.0**-24).neg_().log1p_().neg_()


def _hash(low: torch.Tensor, high: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """A finaliser of three multiplications, each of which is a bijection of 32 bits; the second half of the key comes
    in after the first, so that no two keys give shifted copies of one sequence."""
    bits = ids * _signed(_ODD >> 32) + low
    _fold(bits, 17).mul_(_signed(0xED5AD4BB)).bitwise_xor_(high)
    _fold(bits, 11).mul_(_signed(0xAC4C1B51))
    _fold(bits, 15).mul_(_signed(0x31848BAB))
    return _fold(bits, 14)


def _fold(bits: torch.Tensor, shift: int) -> torch.Tensor:
    """In place: the bits, xor themselves shifted right with zeros coming in."""
    shifted = bits >> shift
    shifted &= (1 << (32 - shift)) - 1
    return bits.bitwise_xor_(shifted)


def _mix64(value: int) -> int:
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def _signed(value: int) -> int:
    return value - 2**32 if value >= 2**31 else value

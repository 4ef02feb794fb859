"""What another version of a model takes and gives no more: pure, over the signatures of both."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tfs_lite.core.signature import DataType, Dim, ShapeContract, Signature, SymbolicDim, TensorSpec, format_shape


def breaks(old: Mapping[str, Signature], new: Mapping[str, Signature], version: str) -> list[str]:
    """The reasons why clients of the old signatures cannot go on with the new ones; empty if they can. ``version`` is
    the old one as messages name it.

    Every signature is there. Of inputs, none is gone, and none is new that a request has to name; of outputs, none is
    gone. Dtypes and ranks are equal, and so are the sizes of inputs; one that requests choose is still theirs, up to
    the same maximum. What either leaves undeclared does not count.
    """
    found = []
    for key, signature in old.items():
        if key not in new:
            found.append(f"signature {key} is gone; {version} has it")
        else:
            found += [f"signature {key}: {what}" for what in _breaks(signature, new[key], version)]
    return found


def _breaks(old: Signature, new: Signature, version: str) -> Iterator[str]:
    yield from _inputs(old, new, version)
    after = {spec.name: spec for spec in new.outputs}
    for spec in old.outputs if new.outputs else ():
        if spec.name not in after:
            yield f"output {spec.name} is gone; {version} gives it"
        elif why := _kind(spec, after[spec.name], version):
            yield f"output {spec.name} {why}"


def _inputs(old: Signature, new: Signature, version: str) -> Iterator[str]:
    if not (old.inputs and new.inputs):
        return
    before, after = ({spec.name: spec for spec in one.inputs} for one in (old, new))
    for name, spec in before.items():
        if name not in after:
            yield f"input {name} is gone; {version} takes it"
        elif why := _kind(spec, after[name], version) or _sizes(old, new, spec, after[name], version):
            yield f"input {name} {why}"
        elif name in old.dispensable - new.dispensable:
            yield f"input {name} has no default; in {version} a request may leave it out"
    for name in after.keys() - before.keys() - new.dispensable:
        yield f"input {name} is new and has no default; {version} does not take it"


def _kind(old: TensorSpec, new: TensorSpec, version: str) -> str:
    if DataType.INVALID not in (old.dtype, new.dtype) and old.dtype is not new.dtype:
        return f"is {new.dtype.text}; in {version} it is {old.dtype.text}"
    if old.shape is None or new.shape is None or len(old.shape) == len(new.shape):
        return ""
    return f"is {format_shape(new.shape)}; in {version} it is {format_shape(old.shape)}"


def _sizes(old: Signature, new: Signature, before: TensorSpec, after: TensorSpec, version: str) -> str:
    if before.shape is None or after.shape is None or ShapeContract.NONE in (old.contract, new.contract):
        return ""
    for axis, (was, now) in enumerate(zip(before.shape, after.shape, strict=True)):
        if not _takes(was, now):
            return f"takes {_size(now)} in dimension {axis}; in {version} it takes {_size(was)}"
    return ""


def _takes(was: Dim, now: Dim) -> bool:
    """Whether the sizes that were taken are taken now."""
    if isinstance(now, int):
        return was == now
    if now.maximum is None:
        return True
    most = was if isinstance(was, int) else was.maximum
    return most is not None and most <= now.maximum


def _size(dim: Dim) -> str:
    if isinstance(dim, SymbolicDim):
        return "any size" if dim.maximum is None else f"any size up to {dim.maximum}"
    return str(dim)

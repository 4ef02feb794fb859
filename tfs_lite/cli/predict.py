"""``tfs-lite predict MODEL --input name=VALUE``: one request to a running server, over gRPC.

A value is JSON (``--input x=[[1,2,3]]``) or a file (``--input x=@rows.json``, ``--input x=@rows.npy``). JSON gets the
element type that the model declares; arrays from .npy files are sent as they are.
"""

from __future__ import annotations

import base64
import json
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfs_lite.cli.arguments import Parser, add_server, grpc_questions, positive_seconds, version_number
from tfs_lite.cli.output import DONE, CliError, UsageError, print_json
from tfs_lite.core.status import ServingError, StatusCode

if TYPE_CHECKING:
    from tfs_lite.client import Client, Prediction

_INPUT_FORM = "expected name=JSON, name=@file.json or name=@file.npy"


def run(argv: Sequence[str]) -> int:
    args = _arguments(argv)
    inputs = read_inputs(args.input)
    with grpc_questions(args, args.timeout) as client:
        try:
            if not inputs:
                raise UsageError(f"--input is missing; {_describe_inputs(client, args)}")
            which: dict[str, Any] = {"version": args.version, "label": args.label}
            answer = client.predict(args.model, inputs, **which, signature=args.signature, outputs=args.output)
        except ServingError as error:
            if error.code is not StatusCode.NOT_FOUND or not (why := _why_not_found(client, args)):
                raise
            raise CliError(f"{error}; {why}", error.code.name) from None
    print_prediction(answer, args.json)
    return DONE


def _arguments(argv: Sequence[str]) -> Namespace:
    parser = Parser("predict", "Sends one request to a running server and prints the outputs.")
    parser.add_argument("model")
    parser.add_argument("--input", action="append", default=[], metavar="NAME=VALUE", help=f"{_INPUT_FORM}; repeat it")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--version", type=version_number, metavar="N", help="default: the newest that is available")
    which.add_argument("--label", help="the version that has this label")
    parser.add_argument("--signature", default="", help="default: serving_default")
    parser.add_argument("--output", action="append", default=[], metavar="NAME", help="only this output; repeat it")
    add_server(parser)
    parser.add_argument("--timeout", type=positive_seconds, default=60.0, help="seconds (%(default)s)")
    return parser.parse(argv)


def read_inputs(texts: Sequence[str]) -> dict[str, Any]:
    """The values of ``name=VALUE`` arguments. Raises CliError or UsageError."""
    inputs: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise UsageError(f"--input {text!r:.80}: {_INPUT_FORM}")
        if name in inputs:
            raise UsageError(f"--input {name} is given twice")
        inputs[name] = _read_file(name, value[1:]) if value.startswith("@") else _read_json(name, value, "the value")
    return inputs


def _read_file(name: str, path: str) -> Any:
    if path.endswith(".npy"):
        return _read_npy(name, path)
    if path.endswith(".json"):
        return _read_json(name, Path(path).read_text(encoding="utf-8", errors="replace"), path)
    raise UsageError(f"--input {name}: {path!r} is neither .npy nor .json; {_INPUT_FORM}")


def _read_npy(name: str, path: str) -> Any:
    import numpy as np

    try:
        return np.load(path, allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise CliError(f"--input {name}: {path} is not a .npy file of numbers: {error}", "INVALID_ARGUMENT") from None


def _read_json(name: str, text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"--input {name}: {where} is not JSON ({error}); {_INPUT_FORM}") from None


def _why_not_found(client: Client, args: Namespace) -> str:
    """Whether the model is unknown or on its way; empty where the server does not say."""
    try:
        return str(client.explain(args.model, version=args.version, label=args.label)["sentence"])
    except ServingError:
        return ""


def _describe_inputs(client: Client, args: Namespace) -> str:
    """``digits takes images: float [-1,8,8]``"""
    from tfs_lite.core.signature import find_signature, format_shape

    metadata = client.metadata(args.model, version=args.version, label=args.label)
    specs = find_signature(metadata.signatures, args.signature).inputs
    takes = ", ".join(f"{spec.name}: {spec.dtype.text} {format_shape(spec.shape)}" for spec in specs)
    return f"{args.model} version {metadata.version} takes {takes}"


def print_prediction(answer: Prediction, as_json: bool) -> None:
    """Prints every value as JSON, or a text that shortens long arrays."""
    if as_json:
        outputs = {name: _plain(array) for name, array in answer.outputs.items()}
        print_json(
            {"model": answer.model, "version": answer.version, "signature": answer.signature, "outputs": outputs}
        )
        return
    import numpy as np

    print(f"model {answer.model} version {answer.version}")
    for name, array in answer.outputs.items():
        values = np.array2string(array, precision=6, suppress_small=True, max_line_width=120, prefix="  ")
        print(f"{name}: {array.dtype} {list(array.shape)}\n  {values}")


def _plain(array: Any) -> Any:
    """Nested lists for JSON: small floats are widened, complex numbers become pairs, strings texts."""
    if array.dtype == object:
        return _decode(array.tolist())
    if array.dtype.kind == "c":
        import numpy as np

        return np.stack((array.real, array.imag), axis=-1).tolist()
    return array.astype("float64").tolist() if array.dtype.kind == "V" else array.tolist()


def _decode(value: Any) -> Any:
    """Bytes as text, or as ``{"b64": ...}`` if they are not UTF-8."""
    if isinstance(value, list):
        return [_decode(item) for item in value]
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"b64": base64.b64encode(value).decode()}

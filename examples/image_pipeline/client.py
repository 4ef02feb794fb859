"""Sends images to the pipeline and says what is on them.

    python examples/image_pipeline/client.py [--address localhost:8501] [IMAGE ...]

Without an image it sends pictures of the kind that the networks know, made of parts they have not seen, and counts how
much of the answers is right. The request is the V2 protocol's over HTTP: by ``tritonclient`` if that is installed, else
by the few lines below.
"""

from __future__ import annotations

import argparse
import http.client
import json
import struct
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

MODEL = "ensemble_image_model"
OUTPUTS = ("CLASSIFICATION", "SEGMENTATION")
Arrays = dict[str, NDArray[np.float32]]
TIMEOUT = 60.0


def ask(address: str, image: bytes, outputs: Sequence[str] = OUTPUTS) -> Arrays:
    """The outputs for one image, without the batch dimension. A model that only makes outputs that are not asked for
    does not run. RuntimeError in the server's words."""
    try:
        import tritonclient.http  # noqa: F401
    except ImportError:
        return ask_plainly(address, image, outputs)
    return ask_with_tritonclient(address, image, outputs)


def ask_with_tritonclient(address: str, image: bytes, outputs: Sequence[str] = OUTPUTS) -> Arrays:
    from tritonclient import http
    from tritonclient.utils import InferenceServerException

    sent = http.InferInput("IMAGE", [1, 1], "BYTES")
    sent.set_data_from_numpy(np.array([[image]], object))
    with http.InferenceServerClient(address, network_timeout=TIMEOUT) as client:
        try:
            answer = client.infer(MODEL, [sent], outputs=[http.InferRequestedOutput(name) for name in outputs])
        except InferenceServerException as error:
            raise RuntimeError(error.message()) from error
    return {name: answer.as_numpy(name)[0] for name in outputs}


def ask_plainly(address: str, image: bytes, outputs: Sequence[str] = OUTPUTS) -> Arrays:
    """The same with the standard library. A body is JSON, then the bytes of tensors; a text among them begins with its
    length."""
    content = struct.pack("<I", len(image)) + image
    tensor = {"name": "IMAGE", "shape": [1, 1], "datatype": "BYTES", "parameters": {"binary_data_size": len(content)}}
    wanted = [{"name": name, "parameters": {"binary_data": True}} for name in outputs]
    head = json.dumps({"inputs": [tensor], "outputs": wanted}).encode()
    headers = {"Content-Type": "application/octet-stream", "Inference-Header-Content-Length": str(len(head))}
    connection = http.client.HTTPConnection(address, timeout=TIMEOUT)
    try:
        connection.request("POST", f"/v2/models/{MODEL}/infer", head + content, headers)
        reply = connection.getresponse()
        body = reply.read()
    finally:
        connection.close()
    if reply.status != 200:
        raise RuntimeError(json.loads(body)["error"])
    return _tensors(body, int(reply.headers["Inference-Header-Content-Length"]))


def _tensors(body: bytes, at: int) -> Arrays:
    """The FP32 tensors of an answer whose first ``at`` bytes are JSON."""
    found: Arrays = {}
    for output in json.loads(body[:at])["outputs"]:
        size = output["parameters"]["binary_data_size"]
        found[output["name"]] = np.frombuffer(body[at : at + size], "<f4").reshape(output["shape"])[0]
        at += size
    return found


def describe(answer: Arrays) -> str:
    """One line: the digit, and what share of the image each class has."""
    from pictures import CLASSES

    digit = int(answer["CLASSIFICATION"].argmax())
    classes = answer["SEGMENTATION"].argmax(0)
    shares = ", ".join(f"{(classes == index).mean():.0%} {name}" for index, name in enumerate(CLASSES))
    return f"{digit} ({answer['CLASSIFICATION'][digit]:.0%} sure); {shares}"


def examine(address: str, count: int) -> tuple[float, float]:
    """Sends so many pictures as PNG; the share of digits and of pixels that are right."""
    from pictures import Painter, png

    pictures = Painter(3, training=False).paint(count)
    digits = pixels = 0.0
    for image, digit, classes in zip(pictures.images, pictures.digits, pictures.classes, strict=True):
        answer = ask(address, png(image))
        print(f"a picture of {digit}: {describe(answer)}")
        digits += answer["CLASSIFICATION"].argmax() == digit
        pixels += (answer["SEGMENTATION"].argmax(0) == classes).mean()
    return digits / count, pixels / count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("images", nargs="*", type=Path, metavar="IMAGE", help="PNG or JPEG")
    parser.add_argument("--address", default="localhost:8501", help="the server's HTTP port")
    parser.add_argument("--count", type=int, default=20, help="pictures to send when no image is given")
    arguments = parser.parse_args()
    try:
        show(arguments)
    except (OSError, RuntimeError) as error:
        sys.exit(f"error: {error}")


def show(arguments: argparse.Namespace) -> None:
    for path in arguments.images:
        print(f"{path}: {describe(ask(arguments.address, path.read_bytes()))}")
    if not arguments.images:
        digits, pixels = examine(arguments.address, arguments.count)
        print(f"{digits:.0%} of the digits and {pixels:.0%} of the pixels are right")


if __name__ == "__main__":
    main()

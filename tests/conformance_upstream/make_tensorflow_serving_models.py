"""Writes the models that the tests of TensorFlow Serving expect in its ``testdata``, for a checkout without them.

python make_tensorflow_serving_models.py TESTDATA

    saved_model_half_plus_two_cpu      TensorFlow 1: y = x / 2 + 2, y2 = x / 2 + 3, y3 = x2 / 2 + 3, with an asset
    saved_model_half_plus_two_tf2_cpu  the same functions, saved by TensorFlow 2 with a fixed shape
    saved_model_half_plus_three        TensorFlow 1, converted from a session bundle: its signature says no shapes
    saved_model_counter                a variable of references: get, incr, incr_by, reset
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import tensorflow as tf

v1 = tf.compat.v1
FEATURES = {
    "x": tf.io.FixedLenFeature([1], tf.float32),
    "x2": tf.io.FixedLenFeature([1], tf.float32, default_value=[0.0]),
}
VERSION = "00000123"
METHOD = "tensorflow/serving/"


def signature(inputs: dict, outputs: dict, method: str):
    def infos(tensors: dict) -> dict:
        return {name: v1.saved_model.build_tensor_info(tensor) for name, tensor in tensors.items()}

    return v1.saved_model.build_signature_def(infos(inputs), infos(outputs), METHOD + method)


def save(session, path: Path, signatures: dict, assets: list | None = None, start=None) -> None:
    builder = v1.saved_model.Builder(str(path / VERSION))
    builder.add_meta_graph_and_variables(session, ["serve"], signatures, assets_collection=assets, main_op=start)
    builder.save()


def half_plus_two(path: Path) -> None:
    with v1.Graph().as_default(), v1.Session() as session, tempfile.TemporaryDirectory() as directory:
        a, b, c, a2, c2 = (
            v1.get_variable(name, initializer=value)
            for name, value in (("a", 0.5), ("b", 2.0), ("c", 3.0), ("a2", 0.5), ("c2", 3.0))
        )
        example = v1.placeholder(tf.string, name="tf_example")
        features = v1.io.parse_example(example, FEATURES)
        for feature in features.values():
            feature.set_shape([None, 1])
        x, x2 = tf.identity(features["x"], "x"), tf.identity(features["x2"], "x2")
        y, y2, y3 = tf.identity(a * x + b, "y"), tf.identity(a * x + c, "y2"), tf.identity(a2 * x2 + c2, "y3")
        file = Path(directory) / "foo.txt"
        file.write_text("asset-file-contents")
        asset = tf.constant(str(file))
        v1.add_to_collection(v1.GraphKeys.ASSET_FILEPATHS, asset)
        name = v1.Variable("", name="filename_tensor", trainable=False, collections=[], use_resource=False)
        session.run(v1.global_variables_initializer())
        signatures = {
            "regress_x_to_y": signature({"inputs": example}, {"outputs": y}, "regress"),
            "regress_x_to_y2": signature({"inputs": example}, {"outputs": y2}, "regress"),
            "regress_x2_to_y3": signature({"inputs": x2}, {"outputs": y3}, "regress"),
            "classify_x_to_y": signature({"inputs": example}, {"scores": y}, "classify"),
            "classify_x2_to_y3": signature({"inputs": x2}, {"scores": y3}, "classify"),
            "serving_default": signature({"x": x}, {"y": y}, "predict"),
        }
        save(session, path, signatures, v1.get_collection(v1.GraphKeys.ASSET_FILEPATHS), tf.group(name.assign(asset)))


def half_plus_three(path: Path) -> None:
    with v1.Graph().as_default(), v1.Session() as session:
        x = v1.placeholder(tf.float32, name="x")
        a, b = v1.get_variable("a", initializer=0.5), v1.get_variable("b", initializer=3.0)
        y = tf.identity(a * x + b, "y")
        session.run(v1.global_variables_initializer())
        default = signature({"x": x}, {"y": y}, "predict")
        for tensor in (default.inputs["x"], default.outputs["y"]):
            tensor.ClearField("tensor_shape")
        save(session, path, {"serving_default": default})


def counter(path: Path) -> None:
    with v1.Graph().as_default(), v1.Session() as session:
        variable = v1.Variable(0.0, name="counter", use_resource=False)
        delta = v1.placeholder(tf.float32, name="delta")
        changes = {
            "incr_counter": variable.assign_add(1.0),
            "incr_counter_by": variable.assign_add(delta),
            "reset_counter": variable.assign(0.0),
        }
        session.run(v1.global_variables_initializer())
        inputs = {"incr_counter_by": {"delta": delta}}
        signatures = {key: signature(inputs.get(key, {}), {"output": op}, "predict") for key, op in changes.items()}
        save(session, path, {"get_counter": signature({}, {"output": variable._ref()}, "predict"), **signatures})


class HalfPlusTwo(tf.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = tf.Variable(0.5), tf.Variable(2.0), tf.Variable(3.0)

    def _parsed(self, examples, name: str):
        return tf.io.parse_example(examples, FEATURES)[name]

    @tf.function(input_signature=[tf.TensorSpec([1], tf.float32, "x")])
    def predict(self, x):
        return {"y": self.a * x + self.b}

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, "inputs")])
    def regress(self, inputs):
        return {"outputs": self.a * self._parsed(inputs, "x") + self.b}

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, "inputs")])
    def regress_to_y2(self, inputs):
        return {"outputs": self.a * self._parsed(inputs, "x") + self.c}

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, "inputs")])
    def classify(self, inputs):
        return {"scores": self.a * self._parsed(inputs, "x") + self.b}


def half_plus_two_of_tensorflow_2(path: Path) -> None:
    model = HalfPlusTwo()
    signatures = {
        "serving_default": model.predict,
        "regress_x_to_y": model.regress,
        "regress_x_to_y2": model.regress_to_y2,
        "classify_x_to_y": model.classify,
    }
    tf.saved_model.save(model, str(path / VERSION), signatures=signatures)


MODELS = {
    "saved_model_half_plus_two_cpu": half_plus_two,
    "saved_model_half_plus_two_tf2_cpu": half_plus_two_of_tensorflow_2,
    "saved_model_half_plus_three": half_plus_three,
    "saved_model_counter": counter,
}


def main(testdata: Path) -> None:
    """Makes what is not there."""
    for name, make in MODELS.items():
        if not (testdata / name / VERSION / "saved_model.pb").exists():
            make(testdata / name)


if __name__ == "__main__":
    main(Path(sys.argv[1]))

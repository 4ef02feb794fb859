"""Writes the SavedModels of the tests below a directory; a program, because TensorFlow takes seconds and memory.

python make_models.py ROOT

    served/three/1   predict, classify and regress on features ``x``: softmax(x W), and the plain sum of x W
    served/torch/1   the same in PyTorch, with the signatures in its config
    served/many/1    same: returns an input of every element type; words: looks texts up in a vocabulary, a file of the
                     version, and refuses "bad"; count: a variable that every request adds to
    served/old/1     as TensorFlow 1 wrote it: method names of its own, and a second graph with the tags serve,gpu
    served/half/1    half_plus_two of TensorFlow Serving: x / 2 + 2, declared as [-1, 1]; regress and
                     classify on Examples; words: a table that is filled at the start, from a file of the version
    served/shapeless/1  the same, and its signature says nothing of shapes, as half_plus_three there
    served/counter/1 a variable of references, as its counter: get, incr, incr_by, reset
    served/trained/1 as three/1, saved together with its optimizer
    company/1        serving_default: how far rows are from their mean; places: the same of numbers in a table; tally: a
                     variable that every request adds its rows to
    served/thief/1   returns the file that the request names
    served/filler/1  same: returns its input; fill: makes 4 TB of a few bytes first
    newer/2          as three/1, with twice the weights
    bomb/1           its table is filled, when it is loaded, with as many zeros as take terabytes
"""

from __future__ import annotations

import sys
from pathlib import Path

import tensorflow as tf

WEIGHTS = [[1.0, -2.0, 0.5], [0.25, 0.5, -1.0]]
FEATURES = {"x": tf.io.FixedLenFeature([2], tf.float32)}
TERABYTES = 8 << 40
LABELS = ["cat", "dog", "owl"]
DTYPES = {
    "half": tf.float16,
    "bfloat": tf.bfloat16,
    "single": tf.float32,
    "double": tf.float64,
    "int8": tf.int8,
    "uint8": tf.uint8,
    "int16": tf.int16,
    "uint16": tf.uint16,
    "int32": tf.int32,
    "uint32": tf.uint32,
    "int64": tf.int64,
    "uint64": tf.uint64,
    "complex64": tf.complex64,
    "complex128": tf.complex128,
    "flag": tf.bool,
    "text": tf.string,
}


def spec(shape, dtype, name):
    return tf.TensorSpec(shape, dtype, name=name)


class Three(tf.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.weights = tf.Variable(tf.constant(WEIGHTS) * factor)

    @tf.function(input_signature=[spec([None, 2], tf.float32, "x")])
    def predict(self, x):
        return {"y": tf.nn.softmax(x @ self.weights)}

    @tf.function(input_signature=[spec([None], tf.string, "inputs")])
    def classify(self, inputs):
        scores = tf.nn.softmax(tf.io.parse_example(inputs, FEATURES)["x"] @ self.weights)
        return {"scores": scores, "classes": tf.tile(tf.constant([LABELS]), [tf.shape(scores)[0], 1])}

    @tf.function(input_signature=[spec([None], tf.string, "inputs")])
    def regress(self, inputs):
        return {"outputs": tf.reduce_sum(tf.io.parse_example(inputs, FEATURES)["x"] @ self.weights, axis=1)}


class Many(tf.Module):
    def __init__(self, vocabulary: Path) -> None:
        super().__init__()
        whole_line, line_number = tf.lookup.TextFileIndex.WHOLE_LINE, tf.lookup.TextFileIndex.LINE_NUMBER
        lines = tf.lookup.TextFileInitializer(str(vocabulary), tf.string, whole_line, tf.int64, line_number)
        self.table = tf.lookup.StaticVocabularyTable(lines, 1)
        self.total = tf.Variable(0.0)

    @tf.function(input_signature=[spec([None, 2], dtype, name) for name, dtype in DTYPES.items()])
    def same(self, *values):
        return {f"{name}_out": tf.identity(value) for name, value in zip(DTYPES, values, strict=True)}

    @tf.function(input_signature=[spec([None], tf.string, "word")])
    def words(self, word):
        with tf.control_dependencies([tf.debugging.assert_none_equal(word, "bad", message="a bad word")]):
            return {"number": self.table.lookup(word), "upper": tf.strings.upper(word)}

    @tf.function(input_signature=[spec([], tf.float32, "add")])
    def count(self, add):
        return {"total": self.total.assign_add(add).read_value()}


class Company(tf.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = tf.Variable(tf.range(8.0))
        self.total = tf.Variable(0.0)

    @tf.function(input_signature=[spec([None, 2], tf.float32, "x")])
    def predict(self, x):
        return {"y": x - tf.reduce_mean(x, axis=0)}

    @tf.function(input_signature=[spec([None], tf.int64, "place")])
    def places(self, place):
        values = tf.gather(self.table, place)
        return {"y": values - tf.reduce_mean(values)}

    @tf.function(input_signature=[spec([None], tf.float32, "add")])
    def tally(self, add):
        return {"total": self.total.assign_add(tf.reduce_sum(add)) + 0 * add}


class Thief(tf.Module):
    @tf.function(input_signature=[spec([], tf.string, "path")])
    def __call__(self, path):
        return {"content": tf.io.read_file(path)}


class Filler(tf.Module):
    @tf.function(input_signature=[spec([None, 2], tf.float32, "x")])
    def same(self, x):
        return {"y": tf.identity(x)}

    @tf.function(input_signature=[spec([None, 2], tf.float32, "x")])
    def fill(self, x):
        return {"y": x + tf.reduce_sum(tf.fill([2**20, 2**20], x[0, 0]))}


class Zeros(tf.saved_model.experimental.TrackableResource):
    """A table that is filled when the model is loaded, and not when it is saved."""

    def __init__(self) -> None:
        super().__init__()
        self.handle = self.resource_handle

    def _create_resource(self):
        return tf.raw_ops.HashTableV2(key_dtype=tf.int64, value_dtype=tf.int64, shared_name="zeros")

    def _initialize(self) -> None:
        size = tf.raw_ops.LookupTableSizeV2(table_handle=self.handle)  # 0, which no optimiser knows
        zeros = tf.fill([size + TERABYTES // 8], tf.constant(0, tf.int64))
        tf.raw_ops.LookupTableImportV2(table_handle=self.handle, keys=zeros, values=zeros)


class Bomb(tf.Module):
    def __init__(self) -> None:
        super().__init__()
        self.zeros = Zeros()

    @tf.function(input_signature=[spec([None, 2], tf.float32, "x")])
    def __call__(self, x):
        return {"y": x + tf.cast(tf.raw_ops.LookupTableSizeV2(table_handle=self.zeros.handle), tf.float32)}


def save(model: tf.Module, path: Path, **signatures) -> None:
    tf.saved_model.save(model, str(path), signatures=signatures)


def save_old(path: Path) -> None:
    """With the builder of TensorFlow 1."""
    v1 = tf.compat.v1
    with v1.Graph().as_default(), v1.Session() as session:
        texts = v1.placeholder(tf.string, [None], "texts")
        x = v1.io.parse_example(texts, FEATURES)["x"]
        weights = v1.get_variable("w", initializer=tf.constant(WEIGHTS))
        scores, sums = tf.nn.softmax(x @ weights), tf.reduce_sum(x @ weights, axis=1)
        session.run(v1.global_variables_initializer())
        build, info = v1.saved_model.build_signature_def, v1.saved_model.build_tensor_info
        classify = build({"inputs": info(texts)}, {"scores": info(scores)}, "tensorflow/serving/classify")
        regress = build({"inputs": info(texts)}, {"outputs": info(sums)}, "tensorflow/serving/regress")
        builder = v1.saved_model.Builder(str(path))
        builder.add_meta_graph_and_variables(session, ["serve"], {"serving_default": classify, "regress": regress})
        builder.add_meta_graph(["serve", "gpu"], {"serving_default": regress})
        builder.save()


def save_half(path: Path, vocabulary: Path, shapes: bool) -> None:
    v1 = tf.compat.v1
    with v1.Graph().as_default(), v1.Session() as session:
        texts = v1.placeholder(tf.string, [None], "tf_example")
        x = tf.identity(v1.io.parse_example(texts, {"x": tf.io.FixedLenFeature([1], tf.float32)})["x"], "x")
        half, two = (v1.get_variable(name, initializer=value) for name, value in (("half", 0.5), ("two", 2.0)))
        y = tf.identity(x * half + two, "y")
        file = tf.constant(str(vocabulary))
        v1.add_to_collection(v1.GraphKeys.ASSET_FILEPATHS, file)
        whole_line, line_number = tf.lookup.TextFileIndex.WHOLE_LINE, tf.lookup.TextFileIndex.LINE_NUMBER
        lines = tf.lookup.TextFileInitializer(file, tf.string, whole_line, tf.int64, line_number)
        word = v1.placeholder(tf.string, [None], "word")
        number = tf.lookup.StaticHashTable(lines, -1).lookup(word)
        session.run(v1.global_variables_initializer())
        build, info = v1.saved_model.build_signature_def, v1.saved_model.build_tensor_info
        signatures = {
            "serving_default": build({"x": info(x)}, {"y": info(y)}, "tensorflow/serving/predict"),
            "regress_x_to_y": build({"inputs": info(texts)}, {"outputs": info(y)}, "tensorflow/serving/regress"),
            "classify_x_to_y": build({"inputs": info(texts)}, {"scores": info(y)}, "tensorflow/serving/classify"),
            "words": build({"word": info(word)}, {"number": info(number)}, "tensorflow/serving/predict"),
        }
        if not shapes:
            for signature in signatures.values():
                for tensors in (signature.inputs, signature.outputs):
                    for tensor in tensors.values():
                        tensor.ClearField("tensor_shape")
        builder = v1.saved_model.Builder(str(path))
        assets, start = v1.get_collection(v1.GraphKeys.ASSET_FILEPATHS), v1.tables_initializer()
        builder.add_meta_graph_and_variables(
            session, ["serve"], signatures, assets_collection=assets, main_op=start, strip_default_attrs=True
        )
        builder.save()


def save_counter(path: Path) -> None:
    v1 = tf.compat.v1
    with v1.Graph().as_default(), v1.Session() as session:
        counter = v1.Variable(0.0, use_resource=False, name="counter")
        delta = v1.placeholder(tf.float32, name="delta")
        session.run(v1.global_variables_initializer())
        build, info = v1.saved_model.build_signature_def, v1.saved_model.build_tensor_info
        calls = {
            "get_counter": ({}, counter._ref()),
            "incr_counter": ({}, counter.assign_add(1.0)),
            "incr_counter_by": ({"delta": info(delta)}, counter.assign_add(delta)),
            "reset_counter": ({}, counter.assign(0.0)),
        }
        signatures = {
            key: build(inputs, {"output": info(output)}, "tensorflow/serving/predict")
            for key, (inputs, output) in calls.items()
        }
        builder = v1.saved_model.Builder(str(path))
        builder.add_meta_graph_and_variables(session, ["serve"], signatures)
        builder.save()


def save_trained(path: Path) -> None:
    """The optimizer's own variables are in the tree of objects, as in a compiled model of Keras 2."""
    model = Three(1.0)
    model.optimizer = tf.compat.v1.train.AdamOptimizer(0.0)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(model.predict(tf.ones([1, 2]))["y"] ** 2)
    model.optimizer.apply_gradients([(tape.gradient(loss, model.weights), model.weights)])
    save(model, path, serving_default=model.predict)


def save_torch(path: Path) -> None:
    import torch

    import tfs_lite

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weights = torch.nn.Parameter(torch.tensor(WEIGHTS))

        def forward(self, x):
            product = x @ self.weights
            return {"y": torch.softmax(product, 1), "sum": product.sum(1)}

    path.mkdir(parents=True)
    tfs_lite.save(Net(), path, example_inputs=(torch.zeros(2, 2),))
    (path / "labels.txt").write_text("".join(f"{label}\n" for label in LABELS))
    (path / "config.yaml").write_text(
        "signatures:\n"
        "  serving_default: {outputs: {y: y}}\n"
        "  classify: {method_name: classify, outputs: {scores: y}, label_filename: labels.txt}\n"
        "  regress: {method_name: regress, outputs: {outputs: sum}}\n"
    )


def main(root: Path) -> None:
    served = root / "served"
    for model, path in ((Three(1.0), served / "three" / "1"), (Three(2.0), root / "newer" / "2")):
        save(model, path, serving_default=model.predict, classify=model.classify, regress=model.regress)
    vocabulary = root / "vocabulary.txt"
    vocabulary.write_text("zero\none\ntwo\n")
    many, thief, filler, bomb, company = Many(vocabulary), Thief(), Filler(), Bomb(), Company()
    save(many, served / "many" / "1", same=many.same, words=many.words, count=many.count)
    save(company, root / "company" / "1", serving_default=company.predict, places=company.places, tally=company.tally)
    save(thief, served / "thief" / "1", serving_default=thief.__call__)
    save(filler, served / "filler" / "1", serving_default=filler.same, fill=filler.fill)
    save(bomb, root / "bomb" / "1", serving_default=bomb.__call__)
    save_old(served / "old" / "1")
    save_half(served / "half" / "1", vocabulary, shapes=True)
    save_half(served / "shapeless" / "1", vocabulary, shapes=False)
    save_counter(served / "counter" / "1")
    save_trained(served / "trained" / "1")
    save_torch(served / "torch")


if __name__ == "__main__":
    main(Path(sys.argv[1]))

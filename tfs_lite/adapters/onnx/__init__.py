"""Platform ``onnxruntime_onnx``: ``model.onnx``, run by onnxruntime.

model_file       the graph, functions and tensors of the file, read without onnx and onnxruntime
inspection       what a file may hold that is not trusted
signature        names, dtypes and shapes
constants        what onnxruntime computes while it loads a file: the bytes that this takes
session          options, and errors of onnxruntime
model            the platform and its models
"""

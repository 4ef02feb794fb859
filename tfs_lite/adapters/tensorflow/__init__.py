"""SavedModels: read without TensorFlow, run by it in a process of its own.

platform      the platform ``tensorflow_savedmodel``, and what ``check`` and the server read of a version
saved_model   ``saved_model.pb``: graphs by tags, signatures, operators
graph         which operators can run
allowed       the operators that need no trust, listed in ``operators.txt``
program       what the process does: it reads, refuses, and only then imports TensorFlow and loads

Nothing here imports torch, and only ``program`` imports TensorFlow: the process of a SavedModel has the one, the server
has the other.
"""

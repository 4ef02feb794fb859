"""Base paths in object stores and on the Hugging Face hub: URLs, the objects below them, and the files of this machine
that versions are fetched into.

``url`` reads URLs, ``store`` says what is asked of a storage, ``objects`` and ``hub`` ask real ones, ``object_errors``
reads the errors of obstore, ``files_cache`` keeps fetched versions, ``fetch`` brings one there, and ``publish`` puts
one into a bucket.
"""

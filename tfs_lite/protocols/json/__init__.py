"""JSON and msgpack bodies: text to trees and arrays, and back.

text                    the entry point: ``loads`` and ``dumps``
tree, scan, diagnosis   a tree by orjson; where things are in a text; what is wrong with it, and where
chunks, dense_numbers   large texts in chunks; blocks of numbers straight into arrays
writer                  trees to text
msgpack                 the same bodies as msgpack
values, tensors, arrays   one element; nested lists to arrays, checked element by element or as fast as numpy can
"""

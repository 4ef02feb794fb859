"""Checks of what is inside an archive, before torch opens it.

archive   a zip archive, read without torch
script    which members ``model.pt`` may have, and what its code may do
wire      the fields of protobuf messages, without their schema
"""

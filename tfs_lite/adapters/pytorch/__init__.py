"""Models of torch: the platforms of what torch writes, and what its models share.

model            the base class: results are tensors on a device
tensors          arrays to tensors and back
export           platform ``pytorch_export``: ``model.pt2``
self_check       what such a program shows about itself at the load
cpu_layout       its weights in a layout that is faster on a CPU, checked at the load
weight_file      files of safetensors, read and never mapped
libtorch         platform ``pytorch_libtorch``: ``model.pt``
"""

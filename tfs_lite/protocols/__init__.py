"""Bytes to tensors and back: wire definitions, dtype tables, tensor codecs, status codes.

    descriptors, messages   our .proto files in a pool of their own, and the message classes
    dtypes                  one table of element types: wire number, numpy dtype, names
    tensor_proto            TensorProto <-> numpy array
    serving                 ModelSpec, SignatureDef, statuses <-> the values of ``core``
    codes                   canonical code -> HTTP status

Nothing here knows torch, a transport or a model.
"""

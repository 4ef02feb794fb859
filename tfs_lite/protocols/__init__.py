"""Bytes to tensors and back: wire definitions, dtype tables, tensor codecs, status codes.

    descriptors, messages   our .proto files in a pool of their own, and the message classes
    dtypes                  one table of element types: wire number, numpy dtype, names
    tensor_proto            TensorProto <-> numpy array
    serving                 ModelSpec, SignatureDef, statuses <-> the values of ``core``
    examples, inference     tf.Example -> arrays; arrays -> classifications and regressions
    json_*, msgpack_body    text and bytes of REST bodies <-> trees
    rest_*                  trees <-> arrays, Examples and answers
    defaults                inputs that a request leaves out
    runs                    a request -> what is run: the checks of live and of replayed requests
    tfrecord, prediction_log    logged requests and the files they are kept in
    codes, trailers         canonical code -> HTTP status; what our server tells our client besides

Nothing here knows torch, a transport or a model.
"""

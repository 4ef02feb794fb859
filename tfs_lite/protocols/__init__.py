"""Bytes to tensors and back: wire definitions, element types, codecs, status codes. No torch, transport or model.

descriptors, messages   our .proto files in a pool of their own, and the message classes
dtypes                  one table of element types: wire number, numpy dtype, names
conditions              conditions on sizes as texts, and as a function
answers                 two answers to one request, compared
runs                    a request -> what is run: the checks of live and of replayed requests, and defaults
tfrecord, varints       files of records; protobuf's integers
fields                  single fields of encoded messages
wire_layouts            protobuf messages that are recognised by the bytes around their numbers
generation_tensors      language models in tensors: what arrays ask for and what they answer
build                   compiles ``protos/*.proto`` into ``descriptors.binpb``
bearer                  tokens in headers
log_format              lines of the log, as text or as JSON
codes, trailers         canonical code -> HTTP status; what our server sends our client in gRPC's trailers
json, rest              text and bytes of REST bodies <-> trees <-> arrays, Examples and answers
tensorflow, v2, openai  the messages and bodies of each API
"""

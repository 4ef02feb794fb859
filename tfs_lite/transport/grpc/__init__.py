"""gRPC on top of HTTP/2: from the header fields and bytes of a stream to a call of a handler, and its answer back.

Read :mod:`head` (header fields to method, time limit, metadata and encoding), :mod:`messages` and :mod:`compression`
(DATA to messages), :mod:`response_headers` with :mod:`codes` (what is sent back), then :mod:`call` (one call with one
request, and what all calls of a server share) and :mod:`streaming` (calls with streams of requests or answers).
"""

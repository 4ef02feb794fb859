"""gRPC over HTTP/2 for servers, in Python: a table of methods on the wire, and nothing about what the methods do.

    bytes -> protocol -> connection (HTTP/2, no I/O) -> calls (gRPC) -> the handlers of the table
      ^                       |                           |
      +------- outgoing <-----+---------------------------+

It is a ground floor: the standard library and ``hpack``, no part of this package. What the rest of the server has to
say comes in as values and functions: the table (:mod:`table`), the bounds (:mod:`limits`), who is let in and what an
exception means to a client (:class:`server.Hooks`).
"""

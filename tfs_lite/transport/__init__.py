"""gRPC over HTTP/2 for servers, in Python: it puts a table of methods on the wire and does not know what they do.

    socket -> protocol -> http2 (bytes to frames and streams, no I/O) -> grpc (calls) -> the handlers of the table
      ^                     |                                              |
      +---- send queue <----+----------------------------------------------+

It needs the standard library and ``hpack``, and imports no other part of this package. The rest of the server passes
in the table of methods, the limits, and :class:`grpc.call.Hooks`, which admit calls and explain exceptions.

Read :mod:`table` (methods), :mod:`limits` and :mod:`numbers` (every bound; what is counted), then the folders
:mod:`http2` and :mod:`grpc`. :mod:`protocol` is one connection on asyncio, with :mod:`pings` (how often a client may
ask), :mod:`watch` (timeouts) and :mod:`deadlines`. :mod:`server` serves and stops. It shares with the HTTP server in
which order requests begin and which are refused (:mod:`backlog`), how connections are accepted (:mod:`acceptor`), who
is at their other end (:mod:`peer`), how many there may be (:mod:`room`), how those that were ended are reported
(:mod:`rate_limited_log`), how a stop waits (:mod:`condition`), and how much is remembered of what repeats
(:mod:`remembered`).
"""

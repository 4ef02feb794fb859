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
(:mod:`rate_limited_log`), how a stop waits (:mod:`condition`), how much is remembered of what repeats
(:mod:`remembered`), and what is wrong with keys and certificates (:mod:`pem`).

The path of a call: ``protocol`` gets bytes, ``http2.connection`` splits them into frames and joins header blocks, and
HEADERS of a known method make a call, which counts towards the streams of its connection and has the deadline of its
``grpc-timeout``. The handler of a unary call starts when the request is whole and its turn in the backlog has come; the
handler of a stream of requests starts at once. A unary answer is one piece (header block, message, trailers), and all
output of one turn of the loop leaves in one write. The first of handler, deadline, reset by the client and end of the
server decides the status.

Why it is built this way:

- No I/O in ``http2`` and ``grpc``: HTTP/2 is tested frame by frame, and any bytes can be compared with another
  implementation of the RFC.
- Repeated header blocks are remembered: a client sends the same fields with every call, and only the time left differs.
  Our own header blocks use no table of the client: they are made once, and a block that is never sent breaks nothing.
- There are two flow-control windows. The connection's window opens as soon as bytes have arrived, so a stream whose
  handler does not read holds up no other stream; a stream's window opens when its handler has taken them. One number
  bounds what all clients together leave here.
- A call counts until its handler has ended, not until the client resets it: a client that begins and resets (rapid
  reset) gets no more handlers than the limit of its connection.
- Everything that costs a client nothing has a rate limit: so many at once, so many a second, and more for every
  answered call. A plain bound would be either so low that busy clients meet it, or too high to be one. The tests of
  ``tests/chaos/test_grpc_attacks*.py`` run each attack at full speed while another client is answered.
- A turn of the loop begins requests for a few milliseconds and then reads again, because a loop that begins all that
  has arrived answers all of it too late. A prediction that would begin too late is refused by its HEADERS alone.
- One look at all connections decides over a snapshot which timeouts are due (``watch``), and one timer is enough for
  all deadlines of calls, because hardly any is ever reached.
- A stop loses no call: the first GOAWAY has the largest stream number, and the echo of a PING behind it says that all
  calls which the client sent before it knew have arrived; the second GOAWAY names the last of them. A connection that
  reaches its age or idle limit ends the same way.
"""

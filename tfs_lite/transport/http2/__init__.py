"""HTTP/2 for servers without I/O (RFC 9113, RFC 7541): bytes in, bytes out, events for the owner.

Read :mod:`errors`, :mod:`framing` (bytes to frames and header blocks), :mod:`hpack_reader`, :mod:`hpack_writer` and
:mod:`fields` (header blocks to checked fields), :mod:`streams`, :mod:`receive_window` and :mod:`rate_limit` (what a
client may send), :mod:`send_queue` (what leaves, and when), and last :mod:`connection`, which joins them.
"""

"""HTTP: connections, bodies, replies and events, shared by every API.

server, connection      the listening socket; one connection, with its timeouts
head_checks             pure: what a request's head must not say
short_path              small requests whose body came with their head
bodies, encoded_bodies, compression   request bodies within bounds; gzip and deflate, both ways
calls                   the requests in flight; each ends by answer, deadline, disconnect or stop
replies, events         answers, errors and server-sent events
resources               what all APIs share of these
lingering_close, heap_trimmer   closing without losing the answer; memory of large bodies given back
"""

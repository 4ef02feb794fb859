"""HTTP: connections, routes, bodies, replies and events, shared by every API.

server, connection      the listening socket; one connection: answers in order, and timeouts
request_reader          from the bytes of a connection to its requests, without I/O
response_writer         from its responses to bytes, no faster than the client reads
message                 what a handler gets and gives: requests, responses, streams
head_checks, response_head   pure: what a request's head must not say; the head of a response
known_heads             heads of requests that need not be parsed again
router                  the table of routes, and the one way from a request to its answer
bodies, compression     request bodies within bounds; gzip and deflate, both ways
calls                   the requests in flight; each ends by answer, deadline, disconnect or stop
replies, events         answers, errors and server-sent events
resources               what all APIs share of these
heap_trimmer            memory of large bodies given back
"""

"""The server: every API over gRPC and HTTP in front of a ``serving.ServerCore``.

server, server_lifecycle    the public object; its parts, and the order of start and stop
endpoints                   makes every service and route from the core
http_app, openapi           every HTTP API as one router, and the pages beside them; their description
metrics_pages               the metrics pages
tensorflow, v2, openai      one folder for each API; none imports another
feature, features           a feature with doors; all features, in their order
inference                   the one path of a request to a model
grpc, http                  the servers of both protocols, and what their services share
access                      who may do what
runtime                     event loop, sockets, readiness
"""

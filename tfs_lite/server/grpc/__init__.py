"""gRPC: tables of methods on our own transport or on gRPC's library.

factory                 makes the server that ``--grpc_server`` names
native_server, grpcio_server   the two servers
channel_arguments       ``--grpc_channel_arguments``, for both
checked_methods         the same tables with a check of the callers
admission               how many calls may be inside; none while the server stops
status                  an exception of a handler as a gRPC code and text
health_service, reflection_service, metrics   services and numbers that do not depend on models
"""

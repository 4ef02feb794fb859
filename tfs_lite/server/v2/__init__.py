"""The KServe V2 protocol with Triton's extensions, over gRPC and HTTP; ``api`` puts it together.

Both transports share ``inference`` (a request on its way to the predictor and back), ``fast_path`` (the same for plain
requests), ``control`` (health, metadata, statistics, loading), ``index`` (states in V2's words) and ``shared_memory``.
gRPC: ``grpc_service`` is the table of methods, ``grpc_messages`` translates, ``grpc_stream`` is one ModelStreamInfer.
HTTP: ``http_app`` answers what ``http_paths`` parses, with ``http_infer`` for predictions, ``http_events`` for their
streams, ``http_routes`` for the rest, and ``http_replies`` for statuses and errors.
"""

"""The KServe V2 protocol with Triton's extensions, over gRPC and HTTP; ``api`` puts it together.

Both transports share ``inference`` (a request on its way to the predictor and back), ``fast_path`` (the same for plain
requests), ``control`` (health, metadata, statistics, loading), ``index`` (states in V2's words) and ``shared_memory``.
gRPC: ``grpc_service`` is the table of methods, ``grpc_messages`` translates parameters and settings, ``grpc_stream`` is
one ModelStreamInfer. HTTP: ``http_app`` is the table of routes, ``http_paths`` says what a path names, ``http_infer``
answers predictions and streams, ``http_routes`` the rest, and ``http_replies`` has statuses and errors.
"""

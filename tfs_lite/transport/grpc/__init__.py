"""gRPC on top of HTTP/2: heads, messages, answers and calls."""

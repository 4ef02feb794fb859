"""The KServe V2 protocol with Triton's extensions, over gRPC and HTTP."""

"""gRPC: tables of methods on our own transport or on gRPC's library, with admission, TLS, health and reflection."""

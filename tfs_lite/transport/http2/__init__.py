"""HTTP/2 for servers, without I/O (RFC 9113, RFC 7541)."""

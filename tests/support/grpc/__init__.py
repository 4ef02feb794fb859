"""Peers, attackers and servers for tests of the gRPC transport."""

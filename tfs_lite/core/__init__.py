"""Values and contracts that every room shares.

Only the standard library is imported here: no torch, no grpc, no asyncio. This package says what a
servable, a loader, a source and a handle promise; the packages above implement it.
"""

"""Values and contracts that every room shares.

Only the standard library is imported here: no torch, no grpc, no asyncio. Whoever wants to know what a
servable, a loader, a source or a handle promises reads it in this package; the rooms above implement it.
"""

"""Which version a live sequence belongs to, across swaps."""

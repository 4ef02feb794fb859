"""What happened, who wanted it, and what it cost in memory.

recorder   turns what the lifecycle does into events, each with who wanted it
memory     the byte account of each load and unload
"""

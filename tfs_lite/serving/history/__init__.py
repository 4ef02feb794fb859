"""What happened, who wanted it, and what it cost in memory.

memory     the byte account of each load and unload
"""

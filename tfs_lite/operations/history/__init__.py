"""The history of a server: what happened, who wanted it, and what it cost in memory.

feature    what a server has of it
recorder   turns what the lifecycle does into events, each with who wanted it
memory     the byte account of each load and unload
file       events in the state directory, for the next server
metrics    events and memory on the metrics page
"""

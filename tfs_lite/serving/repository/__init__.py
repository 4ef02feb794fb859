"""Models that clients load and unload by name: Triton's repository calls.

control    one call after the other: it compares, offers, and puts back what failed
requests   the parameters of a call, checked, and its files written down
plan       pure: what a call changes
resize     a call that only changes the number of instances
waiter     waits for what a call has started
"""

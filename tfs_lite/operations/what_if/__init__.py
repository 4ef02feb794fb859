"""The forecast of what a config or a new version would change, made before it is applied. Nothing is loaded, unloaded
or run.

feature             what a server has of it
forecast            the answer: the versions of each model that would load, unload or stay, and why
plan                the decision: pure, over a snapshot of the manager and a look at the disk
first_looks         a server's first look at a base path, on a disk or at a URL, that fetches and serves nothing
check_models        what a load of a version would say, found out from its files; also what ``tfs-lite check`` prints
unpublished         a version that is not there yet, as the look at the disk would find it
preview             gathers what the decision needs from a running server
"""

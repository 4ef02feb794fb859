"""What operators use, and serving does without: each folder is a feature, and says in its docstring what it does.

Nothing but :mod:`tfs_lite.server.features`, which is their list, names one.
"""

"""The features that operators use and serving does without: each folder is a feature, and nothing but
:mod:`tfs_lite.server.features` names one.

history          events of the lifecycle, who wanted each, and the byte account of loads
failed_requests  the last requests that have failed
access_log       a line in the log for each request
traces           traces of requests, and how they reach a collector
explain          why a model is in its state, and what to do about it
what_if          what a config or a new version would change
admin            what operators ask, whichever way they ask
dashboard        the page for browsers
"""

"""Versions that live in replicas on other machines. Imported only by servers that belong to a cluster.

feature   the cluster as this server sees it: engine, reconciler, and the first look at what an earlier server has left
versions  how a version is opened in replicas, moves with them, and gives them back
metrics   replicas and the cluster on the metrics page
replicas  the processes: how they are placed, started, reached and ended
"""

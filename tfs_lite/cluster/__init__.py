"""Versions that live in replicas on other machines. Imported only by servers that belong to a cluster.

cluster   the cluster as this server sees it: engine, reconciler, and the first look at what an earlier server has left
replicas  how a version is opened in replicas, moves with them, and gives them back
"""

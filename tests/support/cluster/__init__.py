"""Clusters for tests, and the checker of what is promised of replicas on them.

pretended_cluster   nodes and processes in virtual time, and an engine over them
pretended_server    a server on it: the real reconciler, and near ends without tensors
replica_simulation  random days of such a cluster
replica_checker     what has to hold on each of them
process_cluster     real processes on pretended nodes, and an engine over them
ray_nodes           a real cluster of Ray on this machine
engine_contract     what every engine has to do
replicated_models   models for replicas that say when they were opened
serve               ``tfs-lite serve`` on a cluster of processes of another process
"""

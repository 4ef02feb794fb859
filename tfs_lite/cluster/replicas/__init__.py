"""Replicas: models in processes on other machines, which something else starts; one lifecycle over all of them.

near        the model as the server sees it: one place for a replica, whichever is in it now
replica     the process with the model: it opens, runs, and ends itself when no server needs it
listener    where a replica listens
facts       what a replica says about its process
connection  one connection between the two: greeting, frames or shared memory
tls         TLS around it, between hosts
frames      messages with tensors as bytes
transfer    files of a version on their way from the server to the replica's node, or checked on a shared path
generation  digests of a version's files and settings: which replicas may answer for one another
engine      the contract with what starts, ends and lists those processes, and the place as a near end sees it
placement   which replica goes to which node, and which ones are ended: pure decisions, with reasons in words
states      what a version wants, the states of a replica, and the values of its status
reports     the same status, and what is counted, as metrics and pages show it
reconciler  looks, decides and acts, round by round, so that each version has the replicas that it wants

helper           the engine of a server: its work is done by a process that is started again
helper_program   that process, Ray's driver
helper_messages  what the two say to each other
ray_engine       Ray as the engine sees it; the only file that imports ray
registrar        which server decides about the replicas of a cluster name
"""

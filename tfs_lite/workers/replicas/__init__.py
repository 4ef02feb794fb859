"""Replicas: models in processes on other machines, which something else starts; one lifecycle over all of them.

near        the model as the server sees it: one place for a replica, whoever is in it now
replica     the process with the model: it opens, runs, and ends itself when nobody needs it
listener    where a replica listens
facts       what a replica says about its process
connection  one connection between the two: greeting, frames or shared memory
frames      messages with tensors as bytes
generation  digests of a version's files and settings: which replicas may answer for one another
engine      the contract with what starts, ends and lists those processes, and the place as a near end sees it
placement   which replica goes to which node, and which ones are ended: pure decisions, with reasons in words
states      what a version wants, the states of a replica, and the values of its status
reconciler  looks, decides and acts, round by round, so that each version has the replicas that it wants
"""

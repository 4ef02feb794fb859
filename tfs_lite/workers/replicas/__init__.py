"""Models in processes on other machines: replicas of a version, which a server asks over connections of its own.

near        the model as the server sees it: one place for a replica, whoever is in it now
replica     the process with the model: it opens, runs, and ends itself when nobody needs it
listener    where a replica listens
facts       what a replica says about its process
connection  one connection between the two: greeting, frames or shared memory
frames      messages with tensors as bytes
"""

"""Models in processes of their own: forked by a fork server, fed through shared memory, started again when they die.

process         the model as the server sees it; it starts the process again when it has ended
connection      the server's connection to one such process, from its start to its end
child_channel   one request at a time to the process, and a pool of such channels
staging, arena  the tensors of a run in memory that both processes share
supervisor      starts the fork server, asks it for processes, and hears when one has ended
launch          starts the fork server: as a fork of the server itself, or as a new program
fork_server     the process that all processes of models are forked from
child           the process of a model: it opens the model and answers the server's requests
wire, channel   the messages between the two, and how they travel
replicas        the same on other machines, where something else starts the processes
priorities      the scheduling priority of a model's process while it loads and runs
"""

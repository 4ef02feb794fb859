"""Models in processes of their own: forked by a fork server, fed through shared memory, started again when they die.

reconnecting       the model as the server sees it, behind a connection that is made again when it is lost
connection         what the server knows of one process with the model, from its start to its end
request_channel    one request at a time to a process, and a pool of such channels
tensor_channel     messages with tensors: the part that differs between kinds of connections
process            a model in a process of this machine
process_connection starting such a process, opening the model in it, ending it
supervisor         starts the fork server, asks it for processes, and hears when one has ended
launch             starts the fork server: as a fork of the server itself, or as a new program
fork_server        the process that all processes of models are forked from
child              the process of a model: it opens the model and answers the server's requests
sandbox            what a process may do, planned by the server, and entering that
landlock           what Linux offers for it: Landlock, system call filters, capabilities
request_handler    opening a model, running it and closing it there
wire, channel      the messages between the two, and how they travel
tensors            tensors as bytes, one after the other
staging, arena     the tensors of a run in memory that both processes share
priorities         the scheduling priority of a model's process while it loads and runs
"""

"""The lifecycle assembled: from options to models that serve. No asyncio, no web, no transport.

server_core         the core: which models are served, and a handle to each
feature, lifecycle_events   what a feature of a core may do, and what it hears
parts               what the parts of a core know of one another
view                the queries: what is served now, and how it fares
options             every setting of a server, under the name of its flag
source_chain        source -> router -> adapters -> manager, connected
config_sources      where configs come from: flags, a file, a model repository, and what follows their changes
version_follower    a version that changes while it serves: its files, its path, its config
renewal             what may be done to such a version: another size, another load in its place
reload, config_checks, load_waiter   a new config: checked whole, applied, waited for
standing            configs and models that are not in force
model_states        what is known about every version, as ``status`` shows it; also why a version waits
load_journal        every attempt to load a version
change_notifier     tells waiting threads that a state has changed
preloaded           versions that are loaded before the manager asks for them
metrics             what is counted of requests, runs and the lifecycle
response_cache, cache_size   answers that are given again; how many
opening/            how a version becomes something that answers: processes, sandboxes, schedulers, devices
repository/, sequences/, statistics/   load calls; live sequences across swaps; statistics and trace settings
"""

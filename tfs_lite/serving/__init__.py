"""The lifecycle assembled: from options to models that serve. No asyncio, no web, no transport.

server_core         the core: which models are served, in which state, and a handle to each
options             every setting of a server, under the name of its flag
source_chain        source -> router -> adapters -> manager, connected
config_sources      where configs come from: flags, a file, a model repository, and what follows their changes
version_follower    a version that changes while it serves: its files, its path, its config
reload, config_checks, load_waiter   a new config: checked whole, applied, waited for
model_states        what is known about every version, as ``status`` shows it; also why a version waits
load_journal        every attempt to load a version
change_notifier     tells waiting threads that a state has changed
model_opener        opens the instances of a model, in this process or in one of their own
sandboxes           which processes of models get a sandbox
servable_factory    which scheduler runs a model, by its config
model_configs       which config counts for a model
preloaded           versions that are loaded before the manager asks for them
device_resources    devices and memory of this machine
request_services    what servables need beside the lifecycle: statistics, traces, caches, observers of metrics
response_cache, metrics   the response cache; the metrics of versions, memory and reloads
repository/, sequences/, statistics/   load calls; live sequences across swaps; statistics and trace settings
history/            events of the lifecycle, who wanted each, and the byte account of loads
what_if/            what a config or a new version would change
cluster/            versions that live in replicas on other machines
"""

"""The opening of a version: it becomes a servable.

model_opener        opens the instances of a model, in this process or in one of their own
sandboxes           which processes of models get a sandbox
servable_factory    which scheduler runs a model, by its config
model_configs       which config counts for a model
device_resources    devices and memory of this machine
"""

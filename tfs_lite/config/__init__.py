"""The settings that are read from text: config files and reload messages become validated, frozen values.

text, server_files    the entry points: configs of models and servers; the small files that flags name
syntax                protobuf's text format and YAML -> plain data, with the position of every field
settings              what all settings share: strictness, and errors that name file, line, column and field
model_server, diff    which models are served; what changed between two configs
logging_config        which requests are logged
model                 the settings of one model: config.pbtxt or config.yaml beside its versions
tensors, signatures, scheduling, batching, sequence, ensemble, generation, model_warmup, inert   its parts
guard                 the parameters guard.*: what is asked of a new version before it counts
replicas              replicas on other machines: what a model's config and the server's flags say about them
model_json, model_export   a config that a load call brings; a config as clients may ask for it
"""

"""Text to settings: config files and reload messages become validated, frozen values.

settings        what all settings share: strictness, and errors that name file, line, column and field
proto_text      text format of protobuf -> plain data with positions
yaml_text       YAML -> the same
model_server    which models are served: the file of --model_config_file, the body of a reload
model           the settings of one model: config.pbtxt or config.yaml beside its versions
text            the entry point: a file or text in either syntax -> settings
diff            what changed between two configs, and whether that may change at all
"""

"""Text to settings: config files and reload messages become validated, frozen values.

settings        what all settings share: strictness, and errors that name file, line, column and field
proto_text      text format of protobuf -> plain data with positions
yaml_text       YAML -> the same
model_server    which models are served: the file of --model_config_file, the body of a reload
model           the settings of one model: config.pbtxt or config.yaml beside its versions
ssl             who the gRPC server is and which clients it lets in
monitoring      whether and where the metrics page is
batching        how requests are put together into batches, in TensorFlow Serving's terms
scheduling      the same in Triton's, and how many instances of a model there are
server_files    the entry point of the three: a file or text in either syntax -> settings
text            the entry point of the rest: a file or text in either syntax -> settings
diff            what changed between two configs, and whether that may change at all
"""

"""Messages and bodies of the KServe V2 protocol.

request                 an inference request, into which gRPC messages and HTTP bodies are both read
grpc_request, grpc_answer, messages   gRPC: bytes to a request, an answer to bytes
message_json            HTTP: messages that are no inference
json_request, json_values, json_answer, binary   HTTP: JSON with binary tensors behind it
plain, grpc_layouts, http_layouts   requests that differ from an earlier one in their numbers only
checks                  whether a request fits the model, in Triton's order and words
tensors                 datatypes, and raw bytes to arrays
classification, generate   the extensions
"""

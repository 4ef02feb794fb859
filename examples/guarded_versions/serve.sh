#!/bin/sh
# Serves models/ranker on 8500 (gRPC) and 8501 (HTTP). A pushed version is on trial for a minute. Further flags are passed on.
set -eu
test -d models/ranker || python "$(dirname "$0")/push.py" good
exec tfs-lite serve --model_name=ranker --model_base_path=models/ranker --trusted_model_base_paths=models \
  --bake_seconds=60 --state_directory=state "$@"

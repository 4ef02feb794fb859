"""The command line: serve, publish, status, explain, events, predict and others. No other package imports it.

main                        finds the command and turns failures into one line and an exit code
serve, flags, flag_parser   the server, and its flags in one table
publish, status, explain,   other commands, a module each, like
events, predict, record,
reload, rollout, token,
check, demo/
views/                      what ``status`` and ``reload`` show
check_models                what ``check`` finds out about models on disk
record_live, warmup_file    where ``record`` gets requests, and the file that it writes
arguments, output, http     what the commands share
"""

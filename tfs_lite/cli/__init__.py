"""The command line, which no other package imports: serve, publish, status, explain, rollback, guard, events, predict,
record, reload, rollout, token, check, demo.

main                        finds the command and turns failures into one line and an exit code
serve, flags, flag_parser   the server, and its flags in one table
publish, status, explain,   other commands, a module each, like
rollback, guard, events, predict, record, reload,
rollout, token, check, demo/
views/                      what ``status``, ``reload``, ``explain`` and ``check`` show
record_live, warmup_file    where ``record`` gets requests, and the file that it writes
arguments, output, http     what the commands share
"""

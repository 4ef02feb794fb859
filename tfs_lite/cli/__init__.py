"""The command line: serve, publish, status, predict, reload, check, demo. Nothing below this room imports it."""

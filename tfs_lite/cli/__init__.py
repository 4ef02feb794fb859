"""The command line: serve, publish, status, predict, record, reload, check, demo. No other package imports it."""

"""The questions of operators to a server, whichever way they ask.

feature         the admin API as a feature of a server
control         the one contract: AdminControl answers values
questions       what is asked by a JSON body
http_app        its routes over HTTP, a table: path, what answers, what it says of itself
schemas         what the routes take and answer, as JSON schemas
grpc_service    ``tfs_lite.AdminService``: the same JSON over gRPC
events          who reads events, and waits for them, like
events_http,    their route
events_grpc     their method

The command line and the dashboard use the same: nothing here knows who shows an answer.
"""

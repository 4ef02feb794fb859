"""Traces of requests: which are chosen, what their spans are, and how they reach a collector.

    a request ends -> tracer: is it chosen? -> the mode triton: a line of JSON
                                            -> the mode opentelemetry: a bounded queue -> the thread tfs-traces:
                                               spans -> OTLP over HTTP or gRPC

feature           what a server has of it
tracer            chooses, on the event loop, when a request has ended
medians           how long requests of a model usually take
spans             pure: the spans of a request and of a batch
exemplars         traces that have arrived, beside the buckets of histograms
exporter          the queue and the thread
environment       what OpenTelemetry's environment says, and what of it does not count
otlp              spans as messages of OpenTelemetry, and what a collector answers
collector_client  attempts to send them, within a time
collector_http    one over HTTP
collector_grpc    one over gRPC
"""

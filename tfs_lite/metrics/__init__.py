"""Counters and histograms: what the metrics pages show.

request_records                 a request while it runs
ended_requests                  what it was when it ended
requests, batches, generation   what is counted at the end of a request, of a run, of a step and a text
tensorflow, tensorflow_text     the page with TensorFlow Serving's names
series                          counters and histograms that are cheap to increase
"""

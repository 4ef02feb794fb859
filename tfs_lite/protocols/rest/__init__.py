"""Bodies of TensorFlow Serving's REST API: ``predict`` with ``rows``, its row form; ``examples``."""

"""Bodies of TensorFlow Serving's REST API."""

"""TensorFlow Serving's API: prediction and model services over gRPC, and the REST routes."""

"""TensorFlow's messages to arrays and values, and back."""

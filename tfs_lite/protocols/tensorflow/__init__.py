"""TensorFlow's messages to arrays and values, and back.

serving                 model specs, signatures, states and statuses
tensor_proto            TensorProto
predict_requests, predict_answers   Predict without parsing: the bytes around the numbers are remembered
examples, classify_regress   ``tf.Example`` rows, and the rules of Classify, Regress and MultiInference
prediction_log          requests in logs and warm-up files
"""

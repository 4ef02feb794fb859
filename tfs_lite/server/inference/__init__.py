"""The one path from a request to a model, whatever the protocol.

predict_reader     Predict requests, parsed once and recognised by their bytes from then on
predictor          name, version or label -> handle -> checks -> the servable's scheduler
pending            a request that is queued -> its answer, or its parts -> the front end
shield             how a request has ended on a version under trial -> the one before it is asked, the trial told
classify_regress   Classify, Regress and MultiInference on top of it
"""

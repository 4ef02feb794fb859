"""TensorFlow Serving's API.

prediction_service, model_service   the gRPC services
generation_service      texts of language models, streamed
rest_routes             the table of the REST routes, and the grammar of their paths; a new route begins here
rest_service            predict, classify and regress over REST
rest_fast_path          pure: the most common request, rows of floats
rest_models             the pages about models: list, states, metadata
settings                the options that these services share
"""

"""OpenAI's API in front of language models and encoders: ``routes`` is the table of routes, ``app`` answers requests,
``stream`` sends pieces as events, ``embeddings`` asks models for vectors, ``models`` finds and lists models,
``ignored_names`` counts unknown fields, and ``errors`` says what failures look like."""

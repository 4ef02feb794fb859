"""OpenAI's completions API in front of language models: ``routes`` is the table of routes, ``app`` answers requests,
``stream`` sends pieces as events, ``models`` finds and lists models, and ``errors`` says what failures look like."""

"""Bodies of OpenAI's API: ``fields`` (what may be sent), ``request`` (texts for a language model), ``answers``, and
``embeddings`` (both directions)."""

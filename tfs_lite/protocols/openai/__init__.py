"""Bodies of OpenAI's API."""

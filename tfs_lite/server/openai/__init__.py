"""OpenAI's API: completions, chat completions and models."""

"""Language models of the Hugging Face kind: their networks, caches and draws."""

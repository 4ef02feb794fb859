"""Platform ``python``: models that bring code of their own."""

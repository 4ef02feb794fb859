"""Language models whose texts share every step: who runs, where a text's cache lies, and the loop that steps them."""

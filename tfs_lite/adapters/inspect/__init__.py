"""What may be inside an artefact, found out before torch opens it."""

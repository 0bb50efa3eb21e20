"""Making row indexes: from parts of a pack, or by scanning tars that others made."""

"""From records to rows: hooks, regions, tokens, loss weights, and which sequences share a row."""

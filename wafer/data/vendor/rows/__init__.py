"""From turns to rows: regions, tokens, loss weights, and which sequences share a row."""

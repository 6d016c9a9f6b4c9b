"""Text: tokenizers, word pieces, files of documents, turns of a conversation."""

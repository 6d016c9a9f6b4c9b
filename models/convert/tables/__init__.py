"""Tables of Hugging Face's names and settings, by family."""

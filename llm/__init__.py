"""The language models that write the reply."""

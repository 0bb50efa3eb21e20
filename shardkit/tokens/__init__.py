"""Text to tokens and back: tokenizers, and the backends that run them."""

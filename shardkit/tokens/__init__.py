"""Text to tokens and back: tokenizers, and the engines that run them."""

"""MLC LLM."""

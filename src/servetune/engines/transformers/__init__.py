"""Transformers' own server."""

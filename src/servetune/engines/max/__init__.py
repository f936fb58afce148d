"""Modular MAX."""

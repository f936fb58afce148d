"""Find, prove and ship the best way to serve a large language model."""

__all__ = ["__version__"]
__version__ = "0.1.0"

"""Standby: a self-hosted control plane for heavy work."""

__version__ = "0.1.0"

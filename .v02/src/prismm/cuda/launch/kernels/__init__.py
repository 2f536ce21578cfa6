"""Compiled code of the host, which hands launches to CUDA's driver."""

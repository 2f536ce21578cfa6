"""Engines of products on a CPU, which ship with prismm and prove themselves on the machine that they run on."""

"""Modules that own a quant method."""

"""Quantization methods: the code behind each scheme. One file per method; `registry` finds them by name."""

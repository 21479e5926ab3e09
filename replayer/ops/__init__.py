"""Implements ops that move, read or compute tensor values."""

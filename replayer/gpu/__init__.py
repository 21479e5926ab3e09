"""Emulates CUDA devices with their streams, events and launches, and counts the script's steps."""

"""The trace file: conversion between a `Trace` and bytes. FORMAT.md describes the layout.

`trace_file.save` and `trace_file.load` handle whole files. `growing_file` reads a file while another process writes it.
`frames` verifies checksums and distinguishes truncated files from damaged ones. `unpack_limit` limits how much memory a small
file may use.
"""

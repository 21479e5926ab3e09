"""Implements the terminal app `trace view`, which shows one trace, or two traces one above the other.

    lanes, axis           compute how busy a row is in each column, and which trace time a column shows
    tracks, alignment     the rows of a trace, and the alignment of two traces
    scene, window         everything that can be shown (immutable), and the part in view
    cells, compared       turn columns into glyphs and paint numbers, without a terminal
    differences, related  find where two traces differ most, and the events related to a span
    table_rows and others values of tables, and sums over a stretch
    loading, live         threads that read traces and post scenes
    app and the rest      textual: keys, tables, screens

The app computes only sums over the visible time range; all other figures come from the package `traces`.
"""

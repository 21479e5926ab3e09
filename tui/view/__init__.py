"""The timeline app, `trace view A [B]`: one recording, or a recording and its replay laid over each other.

    lanes, axis           arithmetic on numpy columns: how busy a row is in each column, and which trace time a column shows
    tracks, alignment     what rows a trace has, and how the steps or ops of two traces are laid over each other
    scene, window         what can be shown (immutable), and what of it is shown
    cells, rows           columns become glyphs and paint numbers, still without a terminal: this is what goldens hold
    loading, live         threads that read traces and post scenes
    app and the rest      textual: keys, tables, screens

It computes no figures of its own: what it says about two traces is `traces.comparison`, about one `traces.measure`.
"""

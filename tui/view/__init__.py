"""The timeline app, `trace view A [B]`: one recording, or a recording and its replay laid over each other.

    lanes, axis           arithmetic on numpy columns: how busy a row is in each column, and which trace time a column shows
    tracks, alignment     what rows a trace has, and how two traces are laid over each other
    scene, window         what can be shown (immutable), and what of it is shown
    cells, compared       columns become glyphs and paint numbers, still without a terminal: this is what goldens hold
    differences, related  where two traces differ most; what belongs to a span
    table_rows and others values of tables, and sums over a stretch
    loading, live         threads that read traces and post scenes
    app and the rest      textual: keys, tables, screens

What it says about a trace, or two, is worked out in `traces`; what is its own are sums over what is in sight.
"""

"""Implements the terminal app `trace view`, which shows one trace, or two traces one above the other.

    scene       the rows, time axes and differences that can be shown
    timeline    draws the visible time range
    tables      tables beside the timeline
    actions     what each key does
    loading     threads that read traces and make scenes
    app         the widgets and keys of the app
"""

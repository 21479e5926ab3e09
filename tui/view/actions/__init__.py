"""Contains the methods that the keyboard shortcuts of the timeline app call. tui/view/keys.csv lists the shortcuts."""

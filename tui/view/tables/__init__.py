"""Makes the tables that the timeline app shows beside the timeline."""

"""Defines the data model of a trace: its tables, its header and its consistency rules."""

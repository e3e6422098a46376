"""Telemetry: typed events, one hub, loggers, summaries and plots."""

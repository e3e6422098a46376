"""Telemetry: typed events, one hub, loggers, and summaries."""

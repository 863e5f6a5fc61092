"""Buses and stream plumbing: AXI4 signatures, queues and arbiters."""

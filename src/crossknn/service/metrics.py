"""The service's counters, for Prometheus."""

from __future__ import annotations

from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from crossknn.search.results import Results

_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Metrics:
    """The counters of one service, in a separate registry."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        own: Any = {"registry": self._registry}
        of_route: Any = {"labelnames": ["route"], "buckets": _SECONDS} | own
        self._requests = Counter("crossknn_requests", "HTTP requests.", ["route", "status"], **own)
        self._latency = Histogram("crossknn_request_seconds", "Seconds of a request.", **of_route)
        self._calls = Counter("crossknn_calls", "Pairs that the scorer scored.", **own)
        self._hits = Counter("crossknn_store_hits", "Scores read from the store.", **own)
        self._batches = Counter("crossknn_batches", "Batches by number of requests.", ["of"], **own)
        self._steps = Counter("crossknn_seconds", "Seconds of searches by step.", ["step"], **own)
        self._stops = Counter("crossknn_searches", "Searches by what ended them.", ["by"], **own)
        self._degraded = Counter("crossknn_degraded", "Incomplete answers.", **own)
        self.dropped = Counter("crossknn_dropped_connections", "Closed early.", ["why"], **own)
        self.queue = Gauge("crossknn_queue", "Pairs that wait for the scorer.", **own)
        self.live = Gauge("crossknn_live", "Requests under way.", **own)
        self.connections = Gauge("crossknn_connections", "Connections.", **own)

    def request(self, route: str, status: int, seconds: float) -> None:
        """Count an HTTP request."""
        self._requests.labels(route, status).inc()
        self._latency.labels(route).observe(seconds)

    def batch(self, pairs: int, calls: int, seconds: float) -> None:
        """Count a batch of `pairs` scored pairs for `calls` requests."""
        self._calls.inc(pairs)
        self._batches.labels("one" if calls == 1 else "several").inc()
        self._steps.labels("scorer").inc(seconds)

    def search(self, results: Results, waited: float, *, degraded: bool) -> None:
        """Count a search that began `waited` seconds after its request had arrived."""
        scoring = sum(each.scoring_seconds for each in results.rungs)
        self._hits.inc(max(sum(each.n_scored - each.n_calls for each in results.rungs), 0))
        self._steps.labels("waiting").inc(waited)
        self._steps.labels("scoring").inc(scoring)
        self._steps.labels("choosing").inc(results.seconds - scoring)
        self._stops.labels(results.stopped_by).inc()
        self._degraded.inc(degraded)

    def text(self) -> bytes:
        """Return all counters in Prometheus' format."""
        return generate_latest(self._registry)

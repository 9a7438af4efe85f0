"""Serves the metrics of loads to Prometheus: ``python examples/prometheus_metrics.py URI [--port 9464]``.

Needs ``pip install opentelemetry-sdk opentelemetry-exporter-prometheus``. Add to the scrape_configs of Prometheus:
``- {job_name: streamer, static_configs: [{targets: ["HOST:9464"]}]}``
"""

from __future__ import annotations

import argparse

from opentelemetry import metrics
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import MeterProvider
from prometheus_client import start_http_server

import streamer

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("uri")
    parser.add_argument("--port", type=int, default=9464, help="0: any free port")
    arguments = parser.parse_args()

    metrics.set_meter_provider(MeterProvider(metric_readers=[PrometheusMetricReader()]))
    server, thread = start_http_server(arguments.port)
    print(f"http://localhost:{server.server_port}/metrics", flush=True)
    try:
        tensors = streamer.load(arguments.uri)
        print(f"{len(tensors)} tensors", flush=True)
    except streamer.StreamerError as error:
        print(error, flush=True)
    thread.join()

# The broker, for development and tests: docs/broker/index.md.
#
#   docker build -t txnlog-broker .
#   docker run --rm -p 9092:9092 -v broker-data:/data txnlog-broker

FROM python:3.11-slim AS wheel
WORKDIR /source
COPY . .
RUN python -m pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:3.11-slim
COPY --from=wheel /wheels /wheels
# Without the extra "spark": the broker does without PySpark.
RUN python -m pip install --no-cache-dir /wheels/*.whl \
    && useradd --system --uid 10001 --user-group broker \
    && install --directory --owner=broker --group=broker /data
USER 10001
WORKDIR /data
VOLUME /data
EXPOSE 9092 9404
HEALTHCHECK --interval=10s --timeout=6s --start-period=60s --retries=3 \
    CMD ["python", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:9404/metrics', timeout=5)"]
ENTRYPOINT ["python", "-m", "broker_sim"]
CMD ["start", "--data-dir", "/data", "--metrics-port", "9404", "--metrics-address", "0.0.0.0", \
     "--set", "listeners=PLAINTEXT://0.0.0.0:9092", \
     "--set", "advertised.listeners=PLAINTEXT://localhost:9092"]

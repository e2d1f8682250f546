"""Quotas of clients: the quota that holds for a client, its rate, and how long it has to wait.

Theory of operation (KIP-13, KIP-124, KIP-219): bytes or time of a client are summed up in samples
of a second. If the rate over the last ten is above the quota, the answer goes out at once, and says
for how long the host does not read the connection: until the rate would be the quota. A consumer
above its quota gets no records, and what it did not get is not counted. Sources: Kafka's
`ClientQuotaManager`, `QuotaUtils`, `Rate` and `SampledStat`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace

from broker_sim.apis import only_brokers_ask
from broker_sim.core.config import INT32_MAX, BrokerConfig
from broker_sim.core.controller import ClusterImage
from broker_sim.core.controller.image import QuotaEntity, quota_entity
from broker_sim.core.controller.quota_admin import CLIENT_ID, USER
from broker_sim.core.effects import (
    Close,
    ConnectionId,
    Effects,
    NoResponse,
    Request,
    RequestTime,
    Respond,
)
from txnlog_kafka.wire.messages import ApiKey

PRODUCED, CONSUMED, REQUESTS = "producer_byte_rate", "consumer_byte_rate", "request_percentage"
NANOSECONDS_PER_PERCENT = 10_000_000
"""Time in a second that is one percent of it."""
RATES_MIN = 1000
"""Number of rates from which on idle rates are looked for."""
LOGINS = frozenset({ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE})
"""APIs that no quota is for: their answers cannot tell of a throttle."""

Client = tuple[str, str]
"""User and client id that share a rate; "" stands for all."""


def quota_of(
    quotas: Mapping[QuotaEntity, Mapping[str, float]], key: str, user: str, client_id: str
) -> tuple[float, Client] | None:
    """Return the quota of this key that holds for a client, and the clients that share it.

    The first level that has the quota counts (Kafka's `DefaultQuotaCallback`). A client without a
    client id is on none of the levels that name client ids.
    """
    levels: tuple[tuple[dict[str, str | None], Client], ...] = (
        ({USER: user, CLIENT_ID: client_id}, (user, client_id)),
        ({USER: user, CLIENT_ID: None}, (user, client_id)),
        ({USER: user}, (user, "")),
        ({USER: None, CLIENT_ID: client_id}, (user, client_id)),
        ({USER: None, CLIENT_ID: None}, (user, client_id)),
        ({USER: None}, (user, "")),
        ({CLIENT_ID: client_id}, ("", client_id)),
        ({CLIENT_ID: None}, ("", client_id)),
    )
    for names, sharing in levels:
        quota = quotas.get(quota_entity(names), {}).get(key)
        if quota is not None and (client_id or CLIENT_ID not in names):
            return quota, sharing
    return None


@dataclass(slots=True)
class _Sample:
    start_ms: int
    last_ms: int
    total: float


class Rate:
    """Amount per second over the last `samples` - 1 whole windows and the current one."""

    def __init__(self, samples: int, window_ms: int) -> None:
        self._samples_max = samples
        self._window_ms = window_ms
        self._samples: deque[_Sample] = deque()

    def record(self, amount: float, now_ms: int) -> None:
        """Add an amount; a negative amount takes back what was added at the same time."""
        if not self._samples or now_ms - self._samples[-1].start_ms >= self._window_ms:
            self._samples.append(_Sample(now_ms, now_ms, 0.0))
        self._samples[-1].last_ms = now_ms
        self._samples[-1].total += amount

    def throttle_ms(self, quota: float, now_ms: int) -> int:
        """Return the time until the rate is the quota again, if nothing is added; 0 if it is not
        above."""
        window_ms = self._measured_ms(now_ms)
        rate = sum(sample.total for sample in self._samples) * 1000 / window_ms
        return int((rate - quota) / quota * window_ms + 0.5) if rate > quota else 0

    def is_idle(self, now_ms: int) -> bool:
        """True if all that was added is too long ago to count."""
        self._forget_old(now_ms)
        return not self._samples

    def _measured_ms(self, now_ms: int) -> int:
        """Return the time over which the amounts are spread: at least the whole windows."""
        self._forget_old(now_ms)
        elapsed_ms = now_ms - self._samples[0].start_ms if self._samples else 0
        missing = self._samples_max - 1 - elapsed_ms // self._window_ms
        return max(elapsed_ms + max(missing, 0) * self._window_ms, 1)

    def _forget_old(self, now_ms: int) -> None:
        # A sample that began before the windows and overlaps them counts as a whole.
        oldest_ms = now_ms - self._samples_max * self._window_ms
        while self._samples and self._samples[0].last_ms <= oldest_ms:
            self._samples.popleft()


@dataclass(frozen=True, slots=True)
class _Asked:
    """The request that a connection waits for, or has waited for last."""

    correlation_id: int
    user: str
    client_id: str
    produced_bytes: int


class QuotaManager:
    """Rates of the clients of one broker, which knows nothing of the rates at other brokers."""

    def __init__(self, config: BrokerConfig, image: ClusterImage) -> None:
        self._samples = config.integer("quota.window.num")
        self._window_ms = config.integer("quota.window.size.seconds") * 1000
        self._image = image
        self._rates: dict[tuple[str, Client], Rate] = {}
        self._rates_max = RATES_MIN
        self._asked: dict[ConnectionId, _Asked] = {}

    @property
    def is_set(self) -> bool:
        """True if any client has a quota; nothing else is to be called before that."""
        return bool(self._image.client_quotas)

    def note_request(self, request: Request) -> None:
        """Note who waits for the connection's next answer; no quota is for brokers."""
        key = request.api_key
        if key in LOGINS or only_brokers_ask(key, request.api_version, request.message):
            self.forget(request.connection_id)
        else:
            size_bytes = request.size_bytes if key is ApiKey.PRODUCE else 0
            self._asked[request.connection_id] = _asked(request, size_bytes)

    def note_time(self, spent: RequestTime, now_ms: int) -> None:
        """Count the time of a request, as it is known afterwards: for the client's next answer."""
        asked = self._asked.get(spent.connection_id)
        if asked is not None:
            self._record(REQUESTS, asked, spent.nanoseconds / NANOSECONDS_PER_PERCENT, now_ms)

    def forget(self, connection_id: ConnectionId) -> None:
        """Forget a connection that is gone; the rates of its client stay."""
        self._asked.pop(connection_id, None)

    def fetched_bytes_max(self, request: Request) -> int:
        """Return the bytes that a consumer may get at once without being over its quota for
        sure."""
        asked = _asked(request)
        quota = quota_of(self._image.client_quotas, CONSUMED, asked.user, asked.client_id)
        if quota is None:
            return INT32_MAX
        return int(min(quota[0] * (self._samples - 1) * self._window_ms / 1000, INT32_MAX))

    def throttle_fetch(self, request: Request, size_bytes: int, now_ms: int) -> int:
        """Count an answer for a consumer; above 0 are the ms of an empty answer instead of it."""
        asked = _asked(request)
        throttle_ms = max(
            self._record(CONSUMED, asked, size_bytes, now_ms),
            self._record(REQUESTS, asked, 0, now_ms),
        )
        if throttle_ms > 0:
            self._record(CONSUMED, asked, -size_bytes, now_ms)
        return throttle_ms

    def throttle(self, effects: Effects) -> None:
        """Put the throttle times into the answers of a step, and count what was produced."""
        for at, answer in enumerate(effects.responses):
            asked = self._asked.get(answer.connection_id)
            if (
                asked is None
                or isinstance(answer, Close)
                or asked.correlation_id != answer.correlation_id
            ):
                continue
            throttle_ms = self._throttle_ms(asked, answer, effects.monotonic_ms)
            if throttle_ms > 0:
                effects.responses[at] = replace(answer, throttle_ms=throttle_ms)
                if isinstance(answer, Respond):
                    answer.message.throttle_time_ms = throttle_ms

    def _throttle_ms(self, asked: _Asked, answer: Respond | NoResponse, now_ms: int) -> int:
        if isinstance(answer, Respond) and answer.api_key is ApiKey.FETCH:
            return int(answer.message.throttle_time_ms)  # of `throttle_fetch`
        throttle_ms = 0
        if asked.produced_bytes:
            throttle_ms = self._record(PRODUCED, asked, asked.produced_bytes, now_ms)
        if isinstance(answer, Respond):
            throttle_ms = max(throttle_ms, self._record(REQUESTS, asked, 0, now_ms))
        return throttle_ms

    def _record(self, key: str, asked: _Asked, amount: float, now_ms: int) -> int:
        """Count an amount if its client has a quota; return the ms to wait for."""
        found = quota_of(self._image.client_quotas, key, asked.user, asked.client_id)
        if found is None:
            return 0
        quota, sharing = found
        rate = self._rates.get((key, sharing))
        if rate is None:
            self._forget_idle(now_ms)
            rate = self._rates[key, sharing] = Rate(self._samples, self._window_ms)
        rate.record(amount, now_ms)
        # Kafka bounds the wait for time alone, by one window.
        limit_ms = self._window_ms if key == REQUESTS else INT32_MAX
        return min(rate.throttle_ms(quota, now_ms), limit_ms)

    def _forget_idle(self, now_ms: int) -> None:
        """Clients may draw their ids: keep no more rates than there were clients lately."""
        if len(self._rates) >= self._rates_max:
            idle = [name for name, rate in self._rates.items() if rate.is_idle(now_ms)]
            for name in idle:
                del self._rates[name]
            self._rates_max = max(RATES_MIN, 2 * len(self._rates))


def _asked(request: Request, produced_bytes: int = 0) -> _Asked:
    user = request.principal.partition(":")[2]
    return _Asked(request.correlation_id, user, request.client_id or "", produced_bytes)

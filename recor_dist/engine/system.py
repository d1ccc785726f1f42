"""How busy the driver and its machine are, for the journal. It does not see actors and learners on other machines."""

import time

import psutil

SECONDS_BETWEEN_SAMPLES = 10.0


class SystemMetrics:
    def __init__(self) -> None:
        self.process = psutil.Process()
        self.sampled = -SECONDS_BETWEEN_SAMPLES
        psutil.cpu_percent()  # the first call starts the interval that the next one measures
        self.process.cpu_percent()

    def sample(self) -> dict[str, float]:
        """Metrics under `system/`; empty if the last sample is less than ten seconds old."""
        now = time.monotonic()
        if now - self.sampled < SECONDS_BETWEEN_SAMPLES:
            return {}
        self.sampled = now
        return {
            "system/cpu_percent": psutil.cpu_percent(),
            "system/memory_percent": psutil.virtual_memory().percent,
            "system/driver_cpu_percent": self.process.cpu_percent(),
            "system/driver_memory_mb": self.process.memory_info().rss / 1e6,
        }
